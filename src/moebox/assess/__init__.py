"""The judgement of a run: one Assessment, which terminal, report and page show."""
