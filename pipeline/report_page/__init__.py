"""The page of a report: its files are copied into each report as they are."""
