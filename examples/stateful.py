"""A stateful test of a sandbox in 25 lines: any calls in any order, and what must hold after each. `pytest examples/stateful.py`"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nvproxy_model import File, Files, Policy, Session
from nvproxy_model.structs.nvos import NVOS64_PARAMETERS
from nvproxy_model.testing import FakeDriver, GuestCall, Memory, apply
from nvproxy_model.testing.strategies import calls

POLICY = Policy.for_driver("580.159.04", "compute,utility")
CLIENT = GuestCall("frontend", 0xC030462B, NVOS64_PARAMETERS.make(hClass=0x41))  # NV_ESC_RM_ALLOC of a client
HANDLES = (0xC1D00001, 0xCAF00001, 0xCAF00002)  # the first that FakeDriver gives


class Guest(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = FakeDriver("580.159.04")
        files = Files({3: File("frontend", host_fd=1003), 4: File("uvm", host_fd=1004)})
        self.session = Session(POLICY, Memory(0x10000, 0x20000), files, self.driver)

    @rule(call=st.just(CLIENT) | calls(POLICY, handles=HANDLES, fds=(3, 4)))
    def call(self, call: GuestCall) -> None:
        before = len(self.driver.log)
        decision = apply(call, self.session).decision  # None: EBADF, or EFAULT, perhaps where the answer should go
        assert len(self.driver.log) == before or not decision or decision.allowed, "refused, and the driver was called"

    @invariant()
    def every_object_is_below_a_client(self) -> None:
        assert {obj.client for obj in self.session.objects()} <= {obj.handle for obj in self.session.objects()}


TestGuest = Guest.TestCase
