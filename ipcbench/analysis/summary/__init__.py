"""The figures of a run: cells, settings, ranks, the A/A control, crossovers, and the notes and sentences about them."""
