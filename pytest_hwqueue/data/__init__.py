"""Facts: errors, records, metrics, figures, and how they are shown. It imports nothing above."""
