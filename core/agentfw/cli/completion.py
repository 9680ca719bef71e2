"""`agentfw completion SHELL`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(agentfw completion bash)"      in ~/.bashrc
    zsh:   eval "$(agentfw completion zsh)"       in ~/.zshrc
    fish:  agentfw completion fish | source       in ~/.config/fish/config.fish
    """
    from . import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"no completion for {shell}")
    source = kind(cli, {}, "agentfw", "_AGENTFW_COMPLETE")
    click.echo(source.source_template % source.source_vars())
