"""Whether this command line asks for tracebacks: ``--debug``, or ``AAA_DEBUG``."""

wanted = False
