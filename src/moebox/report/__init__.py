"""Reports of run folders: HTML, PDF, Markdown, and a package to publish."""
