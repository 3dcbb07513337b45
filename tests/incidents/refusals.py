"""What keeps a client out of a cluster: a wrong password, a certificate of an authority that it does not trust."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import trustme

from tests.incidents.hall import PASSWORD, USER, Scene
from tests.incidents.scenes import gather

_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_WRONG: Final = "of-last-year"


def _login(library: str, password: str) -> dict[str, Any]:
    """Options of a client that logs in."""
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256"}
    if library == "java":
        return {**options, "sasl_jaas_config": f'{_MODULE} required username="{USER}" password="{password}";'}
    return {**options, "sasl_username": USER, "sasl_password": password}


def has_a_wrong_password(
    scene: Scene, library: str, lasts_ms: int, is_replaced: bool, session_ms: int = 10_000, **options: Any
) -> None:
    """A member is started again, or another one comes, with a password that is not valid, and tries again and again.

    :param is_replaced: whether it is a member that is started again
    """
    scene.bootstrap = scene.brokers[0].secured_address
    last = gather(scene, library, session_ms, **_login(library, PASSWORD), **options)
    name = last.name if is_replaced else "newcomer"
    scene.run.victims = [name]
    if is_replaced:
        last.leave()
        last.kill()
    with scene.doing("start with a wrong password", name):
        refused = scene.program(library, name, session_ms=session_ms, **_login(library, _WRONG), **options)
        refused.send("join")
        time.sleep(lasts_ms / 1000)
    assert refused.complaints, "it was let in"
    refused.kill()
    scene.goes_home()


def distrusts_the_broker(scene: Scene, library: str, lasts_ms: int, session_ms: int = 10_000, **options: Any) -> None:
    """A client comes by TLS that does not know the authority which signed the broker's certificate."""
    gather(scene, library, session_ms, **options)
    scene.run.victims = ["newcomer"]
    with TemporaryDirectory() as folder:
        authority = Path(folder) / "ca.pem"
        trustme.CA().cert_pem.write_to_path(str(authority))
        own: dict[str, Any] = {"security_protocol": "SSL"}
        if library == "java":
            own |= {"ssl_truststore_type": "PEM", "ssl_truststore_location": str(authority)}
        else:
            own["ssl_ca_location"] = str(authority)
        plain, scene.bootstrap = scene.bootstrap, scene.brokers[0].secured_address
        with scene.doing("TLS without the authority of the broker's certificate", "newcomer"):
            refused = scene.program(library, "newcomer", session_ms=session_ms, **own, **options)
            refused.send("join")
            time.sleep(lasts_ms / 1000)
        scene.bootstrap = plain
        assert refused.complaints, "it was let in"
        refused.kill()
    scene.goes_home()
