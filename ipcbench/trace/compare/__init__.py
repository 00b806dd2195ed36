"""One trace against another, and a trace against limits: by method."""
