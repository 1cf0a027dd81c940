"""A sweep in a process of its own, for tests that kill it or start Ray: see test_sweep.py."""

from __future__ import annotations

import json
import sys

import hymell


def on_two_nodes(config: dict[str, object], values: dict[str, list[object]]) -> None:
    """Price on a Ray cluster of two nodes that lives as long as this process."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=1)
    try:
        found = hymell.sweep(config, values, batch=[1, 4], backend="ray", address=cluster.address)
        ray.init(address=cluster.address, log_to_driver=False)
        nodes = sum(node["Alive"] for node in ray.nodes())
        ray.shutdown()
    finally:
        cluster.shutdown()
    print(json.dumps({"nodes": nodes, "rows": found.rows()}))


if __name__ == "__main__":
    on_two_nodes(json.loads(sys.argv[1]), json.loads(sys.argv[2]))
