"""What a stored run means: summary, findings, charts, comparison, recommendation, report, exports."""
