"""Run folders as typed records: one reader for lists, reports, pages, comparisons and packages."""
