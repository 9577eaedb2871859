"""Several Redis servers that know each other: a cluster of three masters, and a replica pair."""

from __future__ import annotations

from typing import Self

import redis

from servers.process import HOST, ServerFailed, wait_until
from servers.redis_server import Fsync, RedisServer

SLOTS = 16_384
MASTERS = 3


class RedisCluster:
    """Three masters without replicas; slots are split evenly.

    A cluster takes writes two seconds after it was formed and not before: that is the server's rule.
    """

    def __init__(self, *, node_timeout_ms: int = 2_000, fsync: Fsync = "always") -> None:
        settings = {"cluster-enabled": "yes", "cluster-node-timeout": str(node_timeout_ms)}
        self.nodes = [
            RedisServer(fsync=fsync, settings=settings, name=f"redis-cluster-{number}")
            for number in range(MASTERS)
        ]
        self._formed = False

    @property
    def url(self) -> str:
        """The first node's address; a cluster client finds the others through it."""
        return self.nodes[0].url

    @property
    def pids(self) -> list[int]:
        return [node.pid for node in self.nodes]

    def client(self) -> redis.RedisCluster:
        return redis.RedisCluster(host=HOST, port=self.nodes[0].port, socket_timeout=5)

    def start(self) -> Self:
        for node in self.nodes:
            node.start()
        if not self._formed:
            self._form()
        if not wait_until(lambda: all(_is_whole(node) for node in self.nodes)):
            raise ServerFailed(f"the cluster did not form:\n{self.nodes[0].log_tail()}")
        return self

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def reset(self) -> None:
        for node in self.nodes:
            node.reset()

    def destroy(self) -> None:
        for node in self.nodes:
            node.destroy()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def _form(self) -> None:
        bounds = [number * SLOTS // MASTERS for number in range(MASTERS + 1)]
        for number, node in enumerate(self.nodes):
            first, last = bounds[number], bounds[number + 1] - 1
            with node.client() as client:
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
                for other in self.nodes[:number]:
                    client.execute_command("CLUSTER", "MEET", HOST, other.port, other.bus_port)
        self._formed = True


class ReplicaPair:
    """A primary and its replica, for failovers that lose what was not yet copied."""

    def __init__(self, *, fsync: Fsync = "always") -> None:
        self.primary = RedisServer(fsync=fsync, name="redis-primary")
        self.replica = RedisServer(fsync=fsync, name="redis-replica")

    @property
    def url(self) -> str:
        """The address of the server that takes writes now."""
        return self.primary.url

    def start(self) -> Self:
        self.primary.start()
        self.replica.start()
        with self.replica.client() as client:
            client.replicaof(HOST, self.primary.port)
        if not wait_until(self._linked):
            raise ServerFailed(f"the replica did not follow:\n{self.replica.log_tail()}")
        return self

    def failover(self) -> None:
        """Make the replica the primary, as a watcher does that has given the old one up.

        The two names change places. The old primary is left as it is: kill or pause it before, and
        what it had not copied is lost.
        """
        with self.replica.client() as client:
            client.replicaof("NO", "ONE")
        self.primary, self.replica = self.replica, self.primary

    def stop(self) -> None:
        self.replica.stop()
        self.primary.stop()

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def reset(self) -> None:
        self.primary.reset()

    def destroy(self) -> None:
        self.replica.destroy()
        self.primary.destroy()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def _linked(self) -> bool:
        """Following, and done with its first append-only file: before that it refuses to stop."""
        with self.replica.client() as client:
            link, files = client.info("replication"), client.info("persistence")
        busy = files["aof_rewrite_in_progress"] or files["aof_rewrite_scheduled"]
        return link.get("master_link_status") == "up" and not busy


def _is_whole(node: RedisServer) -> bool:
    with node.client(decode_responses=True) as client:
        answer = client.execute_command("CLUSTER INFO")
    known: str = answer["cluster_known_nodes"]
    state: str = answer["cluster_state"]
    return (state, known) == ("ok", str(MASTERS))
