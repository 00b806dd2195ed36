"""One trace against another, and a trace against limits: by method.

What does not live here: what a single trace says (ipcbench/trace/report).
"""
