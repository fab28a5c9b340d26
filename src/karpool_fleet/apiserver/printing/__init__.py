"""Server-side printing: the tables that kubectl shows."""
