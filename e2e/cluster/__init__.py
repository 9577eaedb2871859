"""A real Kubernetes cluster for the end-to-end tests, on a developer's machine.

`here()` gives the cluster of this machine: made by kind where Docker runs, and of Kubernetes' own
programs elsewhere. Both offer what `interface.Cluster` describes.
"""

from cluster.interface import Cluster as Cluster
from cluster.select import here as here
from cluster.shell import ClusterError as ClusterError
