"""Compare what the editors' clients know of settings and protocol with the declarations it is written from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from kernel_lsp import __version__
from kernel_lsp.config import Settings
from kernel_lsp.server.protocol import messages as protocol

ROOT = Path(__file__).parent.parent
PACKAGE = json.loads((ROOT / "vscode-client" / "package.json").read_text())
PROPERTIES = PACKAGE["contributes"]["configuration"]["properties"]


def test_no_file_is_stale() -> None:
    command = [sys.executable, ROOT / "scripts" / "write_editor_files.py", "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_every_setting_can_be_set_in_the_editor() -> None:
    assert len(PROPERTIES) >= len(Settings.model_fields)
    assert PROPERTIES["kernelLsp.targetGpu"]["default"] == "H200"


def test_machine_settings_are_restricted_in_untrusted_workspaces() -> None:
    restricted = PACKAGE["capabilities"]["untrustedWorkspaces"]["restrictedConfigurations"]
    assert {"kernelLsp.serverPath", "kernelLsp.python"} <= set(restricted)
    assert all(PROPERTIES[name]["scope"] == "machine" for name in restricted)


def test_the_extension_has_the_version_of_the_server() -> None:
    assert PACKAGE["version"] == __version__


def test_no_command_of_the_client_has_the_id_of_one_of_the_server() -> None:
    ours = {command["command"] for command in PACKAGE["contributes"]["commands"]}
    assert ours
    assert not ours & {command.name for command in protocol.COMMANDS}


def test_every_command_of_a_menu_is_one_of_the_client() -> None:
    ours = {command["command"] for command in PACKAGE["contributes"]["commands"]}
    named = {item["command"] for menu in PACKAGE["contributes"]["menus"].values() for item in menu}
    assert named <= ours


def test_the_readme_names_every_package_in_the_bundle_with_its_pinned_version() -> None:
    client = ROOT / "vscode-client"
    packages = json.loads((client / "package-lock.json").read_text())["packages"]
    bundled = {
        path.rpartition("node_modules/")[2]: each for path, each in packages.items() if path and "dev" not in each
    }
    readme = " ".join((client / "README.md").read_text().split())
    assert bundled
    assert all(f"`{name}` {each['version']}" in readme and each["integrity"] for name, each in bundled.items())
