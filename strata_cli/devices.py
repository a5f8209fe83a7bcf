"""`strata devices`: what can run a model here, and what is missing for more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from strata_cli.output import write_json, write_stdout

if TYPE_CHECKING:
    from backends.devices import DeviceInfo


@click.command("devices", short_help="List the devices that can run a model.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> int:
    """List the devices that can run a model, the default one marked with *, and what is missing for more."""
    from backends.devices import list_devices, missing

    devices, hints = list_devices(), missing()
    if as_json:
        write_json({"devices": [_as_object(device) for device in devices], "missing": list(hints)})
        return 0
    lines = [line for device in devices for line in _describe(device)]
    if not devices:
        lines.append("no device can run a model")
    lines += [f"missing: {hint}" for hint in hints]
    write_stdout("".join(" ".join(line.split("\n")) + "\n" for line in lines))
    return 0


def _as_object(device: DeviceInfo) -> dict[str, Any]:
    return {
        "name": device.name,
        "backend": device.backend,
        "description": device.description,
        "driver": device.driver,
        "units": device.units,
        "memory": device.memory,
        "default": device.default,
        "details": dict(device.details),
    }


def _describe(device: DeviceInfo) -> list[str]:
    # One fact a line rather than wide columns: the same text reads well on a narrow terminal and greps well.
    facts = {"driver": device.driver, "units": str(device.units), "memory": _size(device.memory), **device.details}
    mark = "*" if device.default else " "
    return [f"{mark} {device.name}  {device.backend}  {device.description}", *(f"    {name}: {value}" for name, value in facts.items() if value)]


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count else ""
