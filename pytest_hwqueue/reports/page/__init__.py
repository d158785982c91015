"""The report as one HTML file: a verdict, a table of cells, and each cell's details."""
