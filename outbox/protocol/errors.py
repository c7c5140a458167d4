"""What the protocol raises when bytes or names are not of the protocol."""


class ProtocolError(ValueError):
    """Bytes, text or a name that the protocol does not allow; the message names fault and place."""


class NewerFormatError(ProtocolError):
    """A record of a newer format version: upgrade this process before it reads on.

    Relays and checkers are upgraded before the library, so this never happens in an orderly roll-out.
    """
