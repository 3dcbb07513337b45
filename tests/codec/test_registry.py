"""The registry: every message is found and imported, by name, class and api key."""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, UnionType
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

import kcoord_wire as kw
from kcoord_wire import messages
from kcoord_wire.codec.registry import MessageCodec
from kcoord_wire.schema.files import load_messages, schema_root
from tests.support.each import each

CODECS = list(kw.registry.values())


def package_of(codec: MessageCodec) -> ModuleType:
    """Where the classes of a message are: Kafka's beside each other, those of a design in a package of its folder."""
    folder = Path(codec.schema.file).parent.name
    return messages if codec.family == "kafka" else import_module(f"kcoord_wire.messages.{folder}")


@each("codec", CODECS)
def test_every_message_is_found_and_imported(codec: MessageCodec) -> None:
    place = package_of(codec)
    assert getattr(place, codec.name) is codec.cls
    assert kw.registry.by_class(codec.cls) is codec is kw.registry[codec.name]
    for name, cls in codec.classes.items():
        assert getattr(place, name) is cls
        assert (name in kw.__all__) == (place is messages)
    if codec.type in ("request", "response"):
        assert getattr(kw.registry, codec.type)(codec.api_key, codec.family) is codec
    schema = codec.schema
    assert (schema.name, schema.type, schema.api_key, schema.family) == (
        codec.name,
        codec.type,
        codec.api_key,
        codec.family,
    )
    assert list(codec.valid_versions) == list(schema.versions)
    assert list(codec.flexible_versions) == list(schema.flexible)
    assert codec.cls() == codec.cls()


def test_the_registry_holds_the_schema_files() -> None:
    assert set(kw.registry) == set(load_messages(schema_root()))
    assert len(kw.registry) == len(CODECS)
    assert kw.registry.record_key(2).name == "GroupMetadataKey"
    assert kw.registry.record_value(2).name == "GroupMetadataValue"
    with pytest.raises(KeyError):
        kw.registry.request(999)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("JoinGroup", "there is no message 'JoinGroup'; there is JoinGroupRequest, JoinGroupResponse"),
        ("joingroup", "there is no message 'joingroup'; there is JoinGroupRequest, JoinGroupResponse"),
        ("heartbeatrequest", "there is no message 'heartbeatrequest'; there is HeartbeatRequest"),
        ("HeartbeatReqest", "there is no message 'HeartbeatReqest'; there is HeartbeatRequest"),
        ("zzz", "there is no message 'zzz'"),
    ],
)
def test_an_unknown_name_suggests_others(name: str, text: str) -> None:
    with pytest.raises(KeyError) as missing:
        _ = kw.registry[name]
    assert str(missing.value).startswith(text)
    assert missing.value.args == (name,)
    assert kw.registry.get(name) is None


def test_classes_of_the_designs_are_in_packages_of_their_own() -> None:
    assert kw.messages.marshal.Heartbeat().version == 1
    assert set(messages.PACKAGES) == {"central", "marshal", "proposal", "rewrite"} <= set(dir(messages))
    with pytest.raises(AttributeError) as missing:
        _ = kw.Heartbeat
    assert str(missing.value).endswith(
        "'Heartbeat' (there is HeartbeatRequest and HeartbeatResponse and messages.marshal.Heartbeat)"
    )
    with pytest.raises(AttributeError, match="no attribute 'HeartbeatRequest'"):
        _ = messages.marshal.HeartbeatRequest


def test_other_classes_are_refused() -> None:
    for cls in (int, kw.JoinGroupRequestProtocol, type("JoinGroupRequest", (), {})):
        with pytest.raises(TypeError, match="not a message class"):
            kw.decode(cls, b"", 0)
    with pytest.raises(TypeError, match="not a message class"):
        kw.encode(kw.JoinGroupRequestProtocol(), 0)
    with pytest.raises(AttributeError, match="no attribute 'JoinGrupRequest'"):
        _ = kw.JoinGrupRequest
    assert {"JoinGroupRequest", "decode", "explain", "messages", "__version__"} <= set(dir(kw))
    assert not {"Any", "import_module", "annotations"} & set(dir(kw))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("JoinGroupRequest", "'JoinGroupRequest' is not a message class (registry['JoinGroupRequest'].cls"),
        ("JoinGroup", "'JoinGroup' is not a message class"),
        (None, "None is not a message class"),
        (11, "11 is not a message class"),
        (
            kw.JoinGroupRequestProtocol,
            "JoinGroupRequestProtocol is not a message class, but a struct within JoinGroupRe",
        ),
        (type, "a message is an instance of its class, not the class"),
        (int, "<class 'int'> is not a message class of this registry (compile_schemas returns"),
    ],
)
def test_what_is_no_message_class_is_named(given: object, words: str) -> None:
    with pytest.raises(TypeError) as refused:
        kw.registry.by_class(given)  # type: ignore[arg-type]  # what callers without a type checker pass
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ErrorCode", "(there is error_codes.ErrorCode)"),
        ("ApiKey", "(there is api_keys.ApiKey)"),
        ("Ping", "(there is messages.central.PingRequest and messages.central.PingResponse)"),
        ("Nothing", "has no attribute 'Nothing'"),
    ],
)
def test_a_missing_name_comes_with_its_place(name: str, hint: str) -> None:
    with pytest.raises(AttributeError) as missing:
        getattr(kw, name)
    assert str(missing.value).endswith(hint)
    assert (missing.value.name, missing.value.obj) == (name, kw)


def test_a_registry_and_its_errors_are_readable() -> None:
    assert repr(kw.registry) == f"<Registry of {len(kw.registry)} messages>"
    with pytest.raises(KeyError, match="no request of family kafka has number 999"):
        kw.registry.request(999)


def test_functions_of_either_codec_are_documented() -> None:
    for function in (kw.decode, kw.decode_request, kw.decode_response):
        assert ":raises DecodeError:" in (function.__doc__ or "")
    for function in (kw.encode, kw.encode_request, kw.encode_response):
        assert ":raises EncodeError:" in (function.__doc__ or "")


@pytest.mark.parametrize("version", [-1, 10, 32768])
def test_a_version_that_the_message_lacks(version: int) -> None:
    with pytest.raises(kw.DecodeError) as reading:
        kw.decode(kw.JoinGroupRequest, b"", version)
    assert (reading.value.kind, reading.value.offset, reading.value.path) == ("version", 0, "JoinGroupRequest")
    with pytest.raises(kw.EncodeError) as writing:
        kw.encode(kw.JoinGroupRequest(), version)
    assert (writing.value.kind, writing.value.path) == ("version", "JoinGroupRequest")
    assert str(version) in str(reading.value)


def test_public_names_exist_and_are_documented() -> None:
    for name in kw.__all__:
        value = getattr(kw, name)
        is_documented = value.__doc__ or isinstance(value, UnionType)  # its class may be built without
        assert name == "backend" or value is kw.registry or is_documented, name


def test_every_name_exists_without_construct() -> None:
    code = """
import sys
sys.modules["construct"] = None
import kcoord_wire
from kcoord_wire import *
from tests.support.each import each
assert hasattr(kcoord_wire, "explain")
try:
    explain(b"", JoinGroupRequest, 7)
except ModuleNotFoundError as error:
    assert "kcoord_wire[explain]" in str(error), error
else:
    raise AssertionError("explained without construct")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_subclass_is_written_as_its_message() -> None:
    class Beat(kw.HeartbeatRequest):
        """A message with something added."""

    assert kw.encode(Beat(member_id="m"), 4) == kw.encode(kw.HeartbeatRequest(member_id="m"), 4)
    assert kw.to_dict(Beat(member_id="m")) == kw.to_dict(kw.HeartbeatRequest(member_id="m"))


def test_a_text_message_is_found_by_its_token() -> None:
    """Marshal's own examples ("Marshal PROTOCOL.md"; the log of its Go library)."""
    value = b"ReleasingPartition/1/1795224460/3879dfdf/cl-one/gr.live/test1/0/3"
    message = kw.decode_text(value)
    assert message == kw.messages.marshal.ReleasingPartition(
        time=1795224460,
        instance_id="3879dfdf",
        client_id="cl-one",
        group_id="gr.live",
        topic="test1",
        partition=0,
        current_offset=3,
    )
    assert kw.encode(message, 0) == value
    with pytest.raises(kw.DecodeError) as caught:
        kw.decode_text(b"Nonsense/1")
    assert caught.value.kind == "text"


def test_schemas_compiled_at_run_time(tmp_path: Path) -> None:
    (tmp_path / "Own.json").write_text(
        """// A message of one's own.
        { "type": "data", "name": "Own", "validVersions": "0-1", "flexibleVersions": "1+", "fields": [
            { "name": "Rows", "type": "[]Row", "versions": "0+", "fields": [
                { "name": "Key", "type": "string", "versions": "0+" },
                { "name": "Id", "type": "uuid", "versions": "1+", "ignorable": true } ] } ] }"""
    )
    own = kw.compile_schemas(tmp_path)
    codec = own["Own"]
    message = codec.cls(rows=[codec.classes["OwnRow"](key="k")])
    for version in (0, 1):
        assert codec.decode(codec.encode(message, version), version) == message
    assert kw.to_dict(message, 0, registry=own) == {"Rows": [{"Key": "k"}]}
    with pytest.raises(TypeError):
        kw.encode(message, 0)
    with pytest.raises(FileNotFoundError):
        kw.compile_schemas(tmp_path / "missing")
    (tmp_path / "Twice.json").write_text((tmp_path / "Own.json").read_text())
    with pytest.raises(kw.SchemaError, match=r"Twice\.json.*is defined by .*Own\.json too"):
        kw.compile_schemas(tmp_path)


def test_a_refused_file_refuses_its_message_alone(tmp_path: Path) -> None:
    (tmp_path / "Own.json").write_text('{ "type": "data", "name": "Own", "validVersions": "0", "fields": [] }')
    broken = tmp_path / "Broken.json"
    broken.write_text('{ "type": "data" }')
    own = kw.compile_schemas(tmp_path)
    assert (list(own), list(own.refused), "Broken" in own) == (["Own"], ["Broken"], False)
    assert own.refused["Broken"].file == str(broken)
    with pytest.raises(kw.SchemaError, match='needs the key "name"'):
        own["Broken"]
    with pytest.raises(KeyError):
        own["Other"]
    elsewhere = pickle.loads(pickle.dumps(own.refused["Broken"]))
    assert (str(elsewhere), vars(elsewhere)) == (str(own.refused["Broken"]), vars(own.refused["Broken"]))
    with pytest.raises(kw.SchemaError, match='needs the key "name"'):
        kw.compile_schemas(broken)
    with pytest.raises(kw.SchemaError, match='needs the key "name"'):
        kw.compile_schemas(tmp_path / "Own.json", broken)
    assert not kw.registry.refused


def test_a_jar_and_a_folder_make_one_registry(tmp_path: Path) -> None:
    jar, folder = tmp_path / "clients.jar", tmp_path / "schemas"
    folder.mkdir()
    (folder / "Own.json").write_text('{ "type": "data", "name": "Own", "validVersions": "0", "fields": [] }')
    heartbeat = (schema_root() / "kafka" / "HeartbeatRequest.json").read_text()
    with ZipFile(jar, "w", ZIP_DEFLATED) as archive:
        archive.writestr("common/message/HeartbeatRequest.json", heartbeat)
        archive.writestr("common/message/Broken.json", "{}")
        archive.writestr("META-INF/other.json", "[]")
    both = kw.compile_schemas(jar, str(folder))
    assert (list(both), list(both.refused)) == (["HeartbeatRequest", "Own"], ["Broken"])
    assert both.refused["Broken"].file == f"{jar}/common/message/Broken.json"
    message = both["HeartbeatRequest"].cls(group_id="g")
    assert both["HeartbeatRequest"].encode(message, 4) == kw.encode(kw.HeartbeatRequest(group_id="g"), 4)


def test_the_packages_own_schemas_compile_to_the_same_codecs() -> None:
    compiled = kw.compile_schemas(schema_root())
    for codec in CODECS:
        for version in codec.valid_versions:
            assert compiled[codec.name].plan(version).digest == codec.plan(version).digest
