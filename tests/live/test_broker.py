"""Programs through the real kernel interface: what they get back, what the driver saw, what is left."""

from __future__ import annotations

import errno
import os
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from nvproxy_model import Policy
from nvproxy_model.live import Broker, DirectoryNodes, StartError, Tree
from nvproxy_model.live.in_place import Place
from nvproxy_model.session.ports import Buffer
from tests import ROOT
from tests.live.watched import VERSION, LockedDriver, World

EPROTO = 0x10000


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
def test_the_event_buffer_chain(static: bool, world: World) -> None:
    if static and world.static is None:
        pytest.skip("no static libc")
    ran = world.run("chain", caps="compute,utility,profiling", program=world.static if static else None, verify=True)
    assert ran.out.splitlines() == [
        "device 0",
        "subdevice 0",
        *["memory 0"] * 3,
        "os event 0 0 fd kept",
        "event buffer 0 handle kept",
        "free 0",
        "client 0",
    ]
    assert ran.report.status == 0
    assert ran.refused == {}
    assert list(ran.broker.graph) == []
    assert list(ran.driver.fake.objects()) == []
    assert ran.broker.tally.findings == []
    # After the first free: a client, a device, a subdevice, two memories, and the buffer that was invalidated with the third.
    assert ran.broker.tally.questions == 6
    # The driver keeps the host's number of a registered event, and looks it up again when the buffer names it.
    assert {entry.status for entry in ran.driver.fake.log if entry.number == 0x90CD} == {0}


@pytest.mark.parametrize("text", ["live, and the driver has no such handle", "its parent is", "its class is"])
def test_verifying_finds_what_the_driver_has_otherwise(text: str, world: World) -> None:
    driver = LockedDriver()

    def change(request: int, arg: Buffer | None) -> None:
        if arg is None or request & 0xFF != 0x2A or arg.data[8:12] != (0xD02).to_bytes(4, "little"):
            return
        client = int.from_bytes(arg.data[:4], "little")
        subdevice, memory = driver.fake.find(client, 0x80002), driver.fake.find(client, 0x90001)
        if subdevice is None:
            return
        if "parent" in text:
            subdevice.parent = memory
        elif "class" in text:
            subdevice.hclass = 0x80
        else:
            driver.fake.ioctl(-1, 0xC0104629, Buffer(bytearray(struct.pack("<IIII", client, 0, 0x80002, 0))))

    driver.during = change
    ran = world.run("chain", caps="compute,utility,profiling", driver=driver, verify=True)
    assert any(text in finding for finding in ran.broker.tally.findings)
    assert not ran.broker.tally.failures


def test_refusals_look_as_in_the_sandbox(world: World) -> None:
    ran = world.run("refusals")
    absent = errno.ENOENT
    assert ran.out.splitlines() == [
        "class 22",
        "control 56",
        f"escape -1 {errno.EINVAL}",
        f"modeset -1 {absent}",
        f"dotted -1 {absent}",
        f"relative -1 {absent}",
        f"self -1 {absent}",
        f"link -1 {absent}",
        f"absent -1 {absent}",
        f"fault -1 {errno.EFAULT}",
        f"read-only -1 {errno.EFAULT}",
    ]
    assert ran.refused == {
        "open of /dev/nvidia-modeset": 5,
        "NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS (control 0x90cd0101)": 1,
        "class 0xc639": 1,
        "NV_ESC_NUMA_INFO (escape 0xd7)": 1,
    }


def test_a_node_can_be_exposed(world: World) -> None:
    assert "modeset -1" not in world.run("refusals", expose=["/dev/nvidia-modeset"]).out


def test_observing_lets_everything_happen_and_reports_it(world: World) -> None:
    ran = world.run("refusals", observe=True)
    # The nodes are FIFOs here, and those have no such ioctls.
    assert f"class {EPROTO + errno.ENOTTY:x}" in ran.out
    assert "modeset -1" not in ran.out
    assert ran.driver.calls == 0
    assert ran.refused["class 0xc639"] == 1
    assert ran.refused["open of /dev/nvidia-modeset"] == 5


def test_threads_have_their_own_files_and_one_graph(world: World) -> None:
    ran = world.run("threads", 50)
    assert ran.out == "failures 0\n"
    assert ran.calls["performed"] == 8 * (1 + 2 * 50)
    assert list(ran.driver.fake.objects()) == []


def test_fork_dup_vfork_and_exec_keep_the_file(world: World) -> None:
    ran = world.run("inherited")
    assert ran.out.splitlines() == ["child 0", "parent sees 0", "dup 0", "exec 0", "after 0"]
    made = [entry for entry in ran.driver.fake.log if entry.number in (0x41, 0x80)]
    assert len({entry.host_fd for entry in made}) == 1


def test_exec_from_a_thread_that_is_not_the_first(world: World) -> None:
    assert world.run("exec-from-thread").out == "exec 0\n"


def test_a_table_of_descriptors_shared_without_memory(world: World) -> None:
    handover = world.nodes.parent / "root"
    ran = world.run("clone", environment={"HANDOVER": str(handover)})
    assert ran.out.splitlines() == ["clone 0", "parent 0"]


def test_a_descriptor_passed_over_a_socket_is_the_same_file(world: World) -> None:
    ran = world.run("passed")
    # INVALID_CLIENT: the client went with its last descriptor, in another process than made it.
    assert ran.out.splitlines() == ["passed 0", "its client ended with it 23"]


def test_no_duplicate_of_ours_keeps_a_file_alive(world: World) -> None:
    ran = world.run("ends")
    assert ran.out.splitlines() == ["client made read 0"] * 3
    assert list(ran.broker.graph) == []


def test_a_close_that_races_with_a_call(world: World) -> None:
    ran = world.run("races", 100)
    assert ran.out == "odd 0\n"
    assert list(ran.driver.fake.objects()) == []


def test_a_signal_never_makes_a_call_happen_twice(world: World) -> None:
    driver = LockedDriver()
    driver.during = lambda request, arg: time.sleep(0.004)
    ran = world.run("signals", 60, driver=driver)
    before = int(ran.out.split()[-1])
    assert ran.out.startswith("bad 0 ticked 1 ")
    assert driver.calls == 61 - before


def test_what_another_thread_rewrites_is_decided_as_it_is_used(world: World) -> None:
    ran = world.run("rewriting", 2000)
    assert ran.out == "done\n"
    seen = {entry.number for entry in ran.driver.fake.log if entry.table == "control"}
    assert seen == {0x1F0}
    assert ran.refused  # the other one was tried, and never reached the driver


def test_a_slow_call_does_not_hold_up_another(world: World) -> None:
    both = threading.Barrier(2, timeout=20)
    driver = LockedDriver()

    def meet(request: int, arg: Buffer | None) -> None:
        if request & 0xFF == 0x2A:
            both.wait()

    driver.during = meet
    ran = world.run("two", driver=driver)
    assert ran.out.splitlines() == ["slow 0", "slow 0"]
    assert not both.broken


def test_what_the_caller_has_open_of_a_gpu_is_open_here_while_a_device_is_made(world: World) -> None:
    """nv_is_gpu_accessible() looks among the open files of the process that makes the call."""
    gpu = (world.nodes / "nvidia0").stat()
    driver, seen = LockedDriver(), []

    def look(request: int, arg: Buffer | None) -> None:
        if request & 0xFF == 0x2B and arg is not None:
            mine = [
                os.stat(f"/proc/self/fd/{fd}")
                for fd in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{fd}")
            ]
            seen.append((arg.data[12], any((one.st_dev, one.st_ino) == (gpu.st_dev, gpu.st_ino) for one in mine)))

    driver.during = look
    ran = world.run("gpu", driver=driver)
    assert ran.out.splitlines() == ["without 0", "with 0"]
    assert seen == [(0x41, False), (0x80, False), (0x80, True)]


def test_other_abis_are_answered_enosys_and_counted(world: World) -> None:
    ran = world.run("foreign")
    lines = ran.out.splitlines()
    assert lines[-1] == f"io_uring -1 {errno.ENOSYS}"
    assert all(str(errno.ENOSYS) in line for line in lines)
    assert ran.calls["other ABI"] == len(lines)


def test_calls_on_other_files_never_reach_us(world: World) -> None:
    ran = world.run("elsewhere", 10_000)
    assert ran.out == "done\n"
    assert not ran.broker.tally.decided
    assert set(ran.calls) == {"opens"}
    assert ran.calls["opens"] < 10


def test_a_new_descriptor_of_the_drivers_reaches_the_program(world: World) -> None:
    ran = world.run("dmabuf", caps="compute,utility,rdma")
    assert ran.out.splitlines() == ["export 0 descriptor cloexec 1 read 8 42", "again 0 kept"]


def test_a_client_made_in_place_is_asked_about_before_it_is_believed(world: World) -> None:
    driver = LockedDriver()
    handle = _client_of(driver)
    place = (Place("alloc", 0x41, "a test"),)
    ran = world.run("in-place", hex(handle), driver=driver, in_place=place)
    assert ran.out.splitlines() == [f"client -1 {errno.ENOTTY}", "device 0"]
    assert ran.broker.tally.places == {("alloc", 0x41, "a test"): 1}
    ran = world.run("in-place", hex(handle + 1), driver=driver, in_place=place)
    assert ran.out.splitlines()[1] == "device 23"  # NV_ERR_INVALID_CLIENT, as for any unknown one


def _client_of(driver: LockedDriver) -> int:
    arg = Buffer(bytearray(48))
    arg.data[12] = 0x41
    assert driver.fake.ioctl(-5, 0xC030462B, arg) == 0
    return int.from_bytes(arg.data[8:12], "little")


@pytest.mark.parametrize(("what", "status"), [(("exit", 7), 7), (("die", 9), 137), (("die", 15), 143)])
def test_the_exit_status_is_the_programs(what: Any, status: int, world: World) -> None:
    assert world.run(*what).report.status == status


def test_a_program_that_is_not_there(world: World) -> None:
    with pytest.raises(StartError, match="no-such-program: No such file") as caught:
        world.run(program=world.nodes / "no-such-program")
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(StartError) as caught:
        world.run(program=world.nodes)
    assert caught.value.errno == errno.EACCES


def test_failing_fast_ends_the_tree_at_the_first_refusal_that_matters(world: World) -> None:
    ran = world.run("refusals", fail_fast=True, harmless={("alloc", 0xC639)})
    assert ran.report.status == 137
    assert ran.broker.failed_fast is not None
    assert "ENABLE_EVENTS" in ran.broker.failed_fast


NESTED = """
import sys
from nvproxy_model import Policy
from nvproxy_model.live import Broker, NotifyError
try:
    Broker(Policy.for_driver("580.159.04"), host=sys, nodes=lambda status: None).run(["true"])
except NotifyError as error:
    print(error)
"""


def test_a_broker_inside_a_broker_says_so(world: World) -> None:
    world.nodes = Path("-c")
    ran = world.run(NESTED, program=Path(sys.executable), environment={"PYTHONPATH": str(ROOT)})
    assert ran.out.startswith("another supervisor already watches")
    assert ran.out.count("\n") == 1


def test_calls_of_a_program_that_began_before_there_was_a_broker_wait_for_it(world: World) -> None:
    tree = Tree([str(world.program), str(world.nodes), "exit", "7"])
    tree.start()
    policy = Policy.for_driver(VERSION, allow_unsupported=True)
    report = Broker(policy, host=LockedDriver(), nodes=DirectoryNodes(world.nodes), in_place=()).answer(tree)
    assert report.status == 7
    assert report.tally.calls["opens"] > 0
