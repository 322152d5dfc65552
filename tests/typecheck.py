"""Runtime type checks for tests; an int is welcome where a float is."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
