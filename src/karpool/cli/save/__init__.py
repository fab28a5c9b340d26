"""Commands that write what a cluster holds into a file: `snapshot`, `record`, `support-bundle`."""
