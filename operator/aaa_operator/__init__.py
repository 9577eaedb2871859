"""The operator: AgentRun, ToolPolicy and ToolDecision objects into worker pools and runs.

observe → bind policies → render → plan → apply → status. Everything between observing and applying
is pure: it takes one frozen snapshot and returns what is to be done and why.

- :mod:`aaa_operator.crds`: the cluster's definitions, from the models of :mod:`aaa.manifest`.
- :mod:`aaa_operator.observe`: raw objects as one frozen snapshot.
- :mod:`aaa_operator.binding`: which policies bind a run, and the ConfigMap that carries them.
- :mod:`aaa_operator.render`: the objects of a worker pool.
- :mod:`aaa_operator.submit`: the order of writes by which a run begins once.
- :mod:`aaa_operator.plan`: a snapshot into actions. :mod:`aaa_operator.status`: its conditions.
- :mod:`aaa_operator.frozen`: which pods hold a dead lease, and when that may be believed.
- :mod:`aaa_operator.apply`: the only writer.
- :mod:`aaa_operator.queue`: what to look at next, and when again.
- :mod:`aaa_operator.main`: kopf's part.
"""
