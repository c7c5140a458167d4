"""The relay: moves committed halves to their real topics, exactly once and in order.

One half partition is the unit of everything: one ledger, one checkpoint, one transactional producer, one owner.
"""
