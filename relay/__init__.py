"""The relay: what committed to its real topics, exactly once and in order.

A table source and a half partition are owners of messages: one process at a time owns each, with one transactional
producer. What an owner hands out goes one road, `relay.delivery`; they differ only in how they learn what committed.
"""
