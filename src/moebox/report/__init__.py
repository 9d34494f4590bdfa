"""Run folders to something a person reads: HTML, PDF, Markdown, and a folder to hand on."""
