"""A trace as one page with plots: the report of a trace on the page that reports of runs have.

What does not live here: what a trace says (ipcbench/trace), and how charts and pages are made (ipcbench/analysis).
"""
