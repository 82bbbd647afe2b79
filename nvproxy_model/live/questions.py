"""What the driver believes about a handle: NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO, asked on the client's own file.

Of the commands of class 0 it is the one that is safe to ask beside a running program: it reads (control.c, client_resource.c:
cliresCtrlCmdClientGetHandleInfo_IMPL). An object that was invalidated, since something it depends on was freed, still has its
handle and is still answered for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from nvproxy_model import ioctl
from nvproxy_model.policy.handlers import offset, reader
from nvproxy_model.session.ports import Buffer
from nvproxy_model.structs.nvos import NVOS54_PARAMETERS

__all__ = ["GET_HANDLE_INFO", "Answer", "ask"]

GET_HANDLE_INFO: Final = 0xD02
# ctrl0000client.h: NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS: hObject, index, data.
_PARAMS: Final = struct.Struct("<IIQ")
_PARENT, _CLASS = 1, 2
_REQUEST: Final = ioctl.request(0x2A, NVOS54_PARAMETERS.sizeof())
_AT: Final = offset(NVOS54_PARAMETERS, "params")
_status: Final = reader(NVOS54_PARAMETERS, "status")


class Answer(NamedTuple):
    """A handle that is taken."""

    parent: int
    hclass: int


def ask(host: Callable[[int, Buffer], int], client: int, handle: int) -> Answer | None:
    """What the driver says of an object; None where the client has no such handle, or the file no such client.

    ``host`` makes an ioctl on the client's file: (request, argument) -> errno.
    """
    answers = []
    for index in (_PARENT, _CLASS):
        params = Buffer(bytearray(_PARAMS.pack(handle, index, 0)))
        asked = NVOS54_PARAMETERS.make(hClient=client, hObject=client, cmd=GET_HANDLE_INFO, paramsSize=_PARAMS.size)
        arg = Buffer(bytearray(asked), {_AT: params})
        if host(_REQUEST, arg) or _status(arg.data)[0]:
            return None
        answers.append(_PARAMS.unpack(params.data)[2] & 0xFFFFFFFF)
    return Answer(*answers)
