"""The figures of a run: cells, settings, ranks, crossovers, and the notes that qualify them."""
