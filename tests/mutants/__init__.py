"""Mutants: for each rule, the shipped function that holds it, replaced by one without it; and tests that fail then.

Shipped code carries no switch that turns safety off: a mutant is put in its place from outside, in the process of
the test and in every process that it starts.
"""
