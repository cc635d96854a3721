"""The inventory of a lab's hosts, in the groups of deploy/."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.deploy.base import USER
from tests.deploy.host import Host
from tests.deploy.lab import Lab

Groups = Mapping[str, Sequence[Host]]


def groups(hosts: Sequence[Host]) -> Groups:
    """The second and third host hold parameters, the others compute; a broker is on each."""
    shards = hosts[1:3] or hosts
    replicas = [host for host in hosts if host not in shards] or hosts
    return {"coordinator": hosts[:1], "brokers": hosts, "shards": shards, "replicas": replicas}


def write_inventory(lab: Lab, chosen: Groups, **variables: Any) -> Path:
    """Write it (JSON is YAML too) beside the lab's key; `variables` are for all hosts."""
    ssh = f"-F {lab.ssh_config}"
    known = {host.name: host for hosts in chosen.values() for host in hosts}
    content = {
        "all": {
            "vars": {"ansible_user": USER, "ansible_ssh_common_args": ssh, **variables},
            "hosts": {name: {"ansible_host": host.address} for name, host in known.items()},
        },
        "zmqps": {
            "children": {
                group: {"hosts": {host.name: {} for host in hosts}}
                for group, hosts in chosen.items()
            }
        },
    }
    file = lab.folder / "inventory.json"
    file.write_text(json.dumps(content, indent=2))
    return file
