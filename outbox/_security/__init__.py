"""How a process proves who it is and keeps that to itself: secret files, token providers, principals, encryption."""
