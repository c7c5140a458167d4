"""Measurements. Every figure stands beside its baseline from the same run; no figure in a document is typed by hand.

A run measures its variants in turn (A B A B …), so that whatever else the machine does meets all of them alike. Its
results are one JSON file; `python -m benchmarks.report` makes the document from those files.
"""
