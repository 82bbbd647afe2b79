"""Many guests at once, from threads and from asyncio: one policy for all, and one call at a time in each session."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from nvproxy_model import File, Files, Policy, Result, Session
from nvproxy_model.structs.nvos import NVOS64_PARAMETERS
from nvproxy_model.testing import FakeDriver, GuestCall, Memory, apply

POLICY = Policy.for_driver("580.159.04", "compute,utility")  # immutable: any number of threads may ask it
CLIENT = GuestCall("frontend", 0xC030462B, NVOS64_PARAMETERS.make(hClass=0x41))  # NV_ESC_RM_ALLOC of a client


class Guest:
    """One guest process, whose threads may all make calls: the lock lets one through at a time."""

    def __init__(self) -> None:
        self.lock = Lock()
        files = Files({3: File("frontend", host_fd=1003)})
        self.session = Session(POLICY, Memory(0x10000, 0x20000), files, FakeDriver("580.159.04"))

    def call(self, call: GuestCall) -> Result:
        """A call from a thread. The guest's memory is under the lock as well: the call's bytes lie at one place."""
        with self.lock:
            return apply(call, self.session)

    async def call_from_loop(self, call: GuestCall) -> Result:
        """A call from asyncio: a driver may take seconds, so the loop waits for a thread and not for the driver."""
        return await asyncio.to_thread(self.call, call)


def in_threads(guests: list[Guest], calls: int) -> int:
    """Every guest makes its calls from a pool of threads; how many were admitted."""
    with ThreadPoolExecutor(8) as pool:
        results = pool.map(Guest.call, guests * calls, [CLIENT] * (len(guests) * calls))
        return sum(result.errno == 0 for result in results)


async def in_a_loop(guests: list[Guest], calls: int) -> int:
    """The same from coroutines."""
    results = await asyncio.gather(*(guest.call_from_loop(CLIENT) for guest in guests * calls))
    return sum(result.errno == 0 for result in results)


if __name__ == "__main__":
    guests = [Guest() for _ in range(4)]
    print("from threads:", in_threads(guests, 16), "calls admitted")
    print("from asyncio:", asyncio.run(in_a_loop(guests, 16)), "calls admitted")
    print("objects of each guest:", *(len(guest.session.objects()) for guest in guests))
