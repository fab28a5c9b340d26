"""How results are shown: tables, HTML, charts, progress. Start with `text`."""
