"""How facts are shown: documents, tables, charts."""
