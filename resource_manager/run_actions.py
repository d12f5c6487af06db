"""The part of the ResourceManager that deals with what is there already: runs, cache, this machine."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tools_utilities.console import Console
from tools_utilities.settings import Settings
from tools_utilities.stop_signals import interrupted

if TYPE_CHECKING:
    from resource_manager.processing import ShardCommands


class Spoken(Protocol):
    """The fields of a reading that are carried out (`knowledge_hub.hub.Reading`)."""

    intent: str | None
    slots: Mapping[str, Any]
    overrides: Mapping[str, Any]
    """The slots and settings that `--override` gave; they win over the rest."""
    canonical: str | None


class RunActions:
    """Commands on runs that exist, on the cache and on this machine; each in a file of its own."""

    console: Console
    left_running = False
    """Whether a run of this command was left running in the background while it was watched."""
    _options: Any

    def note_left(self) -> None:
        """Take note that the run was left: what follows by `then` would not wait for its end."""
        self.left_running = True

    def _settings_of(self, reading: Spoken, *, keep_relative: bool = False) -> Settings:
        raise NotImplementedError

    def _settings_for(
        self,
        sentence: Mapping[str, Any],
        overrides: Mapping[str, Any],
        *,
        keep_relative: bool = False,
    ) -> Settings:
        raise NotImplementedError

    def list_runs(self, reading: Spoken) -> int:
        """List the runs, newest first."""
        from resource_manager.run_commands import list_command

        return list_command(self._settings_of(reading), reading.slots, self.console)

    def show_run(self, reading: Spoken) -> int:
        """Show one run: figures and a picture."""
        from resource_manager.show_command import show_command

        return show_command(self._settings_of(reading), reading.slots, self.console)

    def compare_runs(self, reading: Spoken) -> int:
        """Show how runs differ, and what came of it."""
        from resource_manager.compare_command import compare_command

        return compare_command(self._settings_of(reading), reading.slots, self.console)

    def attach(self, reading: Spoken) -> int:
        """Watch a run that goes on."""
        from resource_manager.attaching import attach_command

        return attach_command(self._settings_of(reading), reading.slots, self.console)

    def stop_runs(self, reading: Spoken) -> int:
        """Stop one run or all, saving them."""
        from resource_manager.run_commands import stop_command

        with interrupted("`quark list` shows which runs have ended."):
            return stop_command(
                self._settings_of(reading), reading.slots, self.console,
                plan_only=self._plans_only(reading),
            )  # fmt: skip

    def logs(self, reading: Spoken) -> int:
        """Show a run's log."""
        from resource_manager.run_log import logs_command

        return logs_command(self._settings_of(reading), reading.slots, self.console)

    def delete_run(self, reading: Spoken) -> int:
        """Delete a run's folder."""
        from resource_manager.removal import delete_command

        with interrupted("`quark list` shows which runs are there."):
            return delete_command(
                self._settings_of(reading), reading.slots, self.console,
                plan_only=self._plans_only(reading),
            )  # fmt: skip

    def clean_cache(self, reading: Spoken) -> int:
        """Empty the cache."""
        from resource_manager.removal import clean_command

        with interrupted("The same command removes what is left."):
            return clean_command(
                self._settings_of(reading), reading.slots, self.console,
                plan_only=self._plans_only(reading),
            )  # fmt: skip

    def process(self, reading: Spoken) -> int:
        """Run a function over every sample of a sharded dataset, by claims."""
        with interrupted("The same command goes on where this one ended."):
            return self._shard_commands(reading).process(reading.slots)

    def shard(self, reading: Spoken) -> int:
        """Make a sharded dataset."""
        with interrupted("The same command goes on from the last finished chunk."):
            return self._shard_commands(reading).shard(reading.slots)

    def act_on_shards(self, reading: Spoken) -> int:
        """Claim, complete, fail, reset_shard or shard_status, as the reading's intent says."""
        with interrupted("`shard status of …` shows how the shards are."):
            return self._shard_commands(reading).act(str(reading.intent), reading.slots)

    def _shard_commands(self, reading: Spoken) -> "ShardCommands":
        from resource_manager.processing import ShardCommands

        settings = self._settings_of(reading)
        return ShardCommands(settings, self.console, plan_only=self._plans_only(reading))

    def _plans_only(self, reading: Spoken) -> bool:
        """Whether only the plan is asked for: `--plan`, or `dry run` in the sentence."""
        return bool(reading.slots.get("plan_only")) or self._options.plan_only

    def why(self, name: str, run: str | None = None) -> int:
        """Say where a value of a run (the last one) came from; without any run, of a setting.

        Raises:
            UsageError: nobody knows the name.
        """
        from resource_manager.provenance import why_command

        return why_command(self._settings_for({}, {}), name, run, self.console)

    def demo(self, reading: Spoken) -> int:
        """Show the whole path on real parts, and check what is promised of it."""
        from resource_manager.demo import Demo
        from resource_manager.runs import out_dir_of

        settings, slots = self._settings_of(reading), dict(reading.slots)
        if self._options.plan_only:
            slots["plan_only"] = True
        with interrupted("`quark demo` begins anew; `quark list` shows its runs."):
            return Demo(settings.root, out_dir_of(settings), self.console, slots=slots).run()

    def doctor(self, reading: Spoken) -> int:
        """Check this machine and the configured store."""
        from resource_manager.doctor import as_json, check_lines, closing_line, run_checks
        from resource_manager.rental.orphans import check_rented, offer_to_destroy
        from resource_manager.runs import out_dir_of
        from resource_manager.sky.sky_orphans import check_launched
        from tools_utilities.process_environment import environment_now

        settings = self._settings_of(reading)
        checks = run_checks(settings)
        check, orphans, api = check_rented(out_dir_of(settings), environment_now())
        checks += [one for one in (check, check_launched(out_dir_of(settings))) if one is not None]
        self.console.result([*check_lines(checks), closing_line(checks)], as_json(checks))
        if api is not None:
            offer_to_destroy(orphans, api, self.console)
        return 1 if any(check.state == "fail" for check in checks) else 0
