"""What operators look at and decide: all verbs of `outbox`, for rows and for halves.

`state` is pure, and has what there is to see; `reading` asks Kafka and the databases; `deciding` writes decisions;
`checks` examines a setup; `commands` are the verbs.
"""
