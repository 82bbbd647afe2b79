"""Small gVisor trees of our own writing, in each shape that nvproxy's version.go has had since 2024."""

from __future__ import annotations

from pathlib import Path

NVGPU = """
package nvgpu

import "structs"

type P64 uint64

type Handle struct {
	_   structs.HostLayout
	Val uint32
}

type ClassID uint32

const (
	NV_IOCTL_BASE  = 200
	NV_ESC_RM_FREE = 0x29
	NV_ESC_RM_VID_HEAP_CONTROL = 0x4a
	NV_ESC_REGISTER_FD = NV_IOCTL_BASE + 1
)

const (
	UVM_DEINITIALIZE = 0x30000002
	UVM_FREE         = 34
)

const (
	NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2 = 0x205
	NV0000_CTRL_CMD_GPU_GET_ID_INFO    = 0x202
	NV2080_CTRL_CMD_GPU_GET_ID         = 0x20800142
	UNKNOWN_CONTROL_COMMAND_80028B     = 0x80028b
)

const (
	NV01_MEMORY_SYSTEM = 0x0000003e
	NV20_SUBDEVICE_0   = 0x00002080
	NV50_P2P           = 0x0000503b
)

type NVOS00_PARAMETERS struct {
	_             structs.HostLayout
	HRoot         Handle
	HObjectParent Handle
	HObjectOld    Handle
	Status        uint32
}

type IoctlRegisterFD struct {
	_     structs.HostLayout
	CtlFD int32
}

type UVM_FREE_PARAMS struct {
	_        structs.HostLayout
	Base     uint64
	Length   uint64
	RMStatus uint32
	Pad0     [4]byte
}

type UVM_FREE_PARAMS_V590 struct {
	_        structs.HostLayout
	Base     uint64
	RMStatus uint32
	Pad0     [4]byte
}

type NV2080_ALLOC_PARAMETERS struct {
	_           structs.HostLayout
	SubDeviceID uint32
}

type NVOS32_PARAMETERS struct {
	HRoot         Handle
	HObjectParent Handle
	Function      uint32
	HVASpace      Handle
	IVCHeapNumber int16
	Pad           [2]byte
	Status        uint32
	Total         uint64
	Free          uint64
	Data          [144]byte
}

type NVOS32AllocSize struct {
	Owner           uint32
	HMemory         Handle
	Type            uint32
	Flags           uint32
	Attr            uint32
	Format          uint32
	ComprCovg       uint32
	ZcullCovg       uint32
	PartitionStride uint32
	Width           uint32
	Height          uint32
	Pad0            [4]byte
	Size            uint64
	Alignment       uint64
	Offset          uint64
	Limit           uint64
	Address         P64
	RangeBegin      uint64
	RangeEnd        uint64
	Attr2           uint32
	CtagOffset      uint32
}
"""

CAPS = """
package nvconf

type DriverCaps uint16

const (
	CapCompute DriverCaps = 1 << iota
	CapDisplay
	CapGraphics
	CapNGX
	CapUtility
	CapVideo
	CapCompat32
	CapFabricIMEXManagement

	numValidCaps int = iota
)

const ValidCapabilities = DriverCaps(1<<numValidCaps - 1)
"""

FILTERS = """
package nvproxy

const compUtil = nvconf.CapCompute | nvconf.CapUtility
"""

MODERN = """
package nvproxy

func Init() {
	abisOnce.Do(func() {
		abis = make(map[nvconf.DriverVersion]driverABIEntry)
		v535_104_05 := addUnsupportedDriverABI(535, 104, 05, func() *driverABI {
			// The root.
			return &driverABI{
				frontendIoctl: map[uint32]frontendIoctlHandler{
					nvgpu.NV_ESC_RM_FREE:             feHandler(rmFree, compUtil),
					nvgpu.NV_ESC_REGISTER_FD:         feHandler(frontendRegisterFD, compUtil),
					nvgpu.NV_ESC_RM_VID_HEAP_CONTROL: feHandler(rmVidHeapControl, compUtil),
				},
				uvmIoctl: map[uint32]uvmIoctlHandler{
					nvgpu.UVM_DEINITIALIZE: uvmHandler(uvmIoctlNoParams, compUtil),
					nvgpu.UVM_FREE:         uvmHandler(uvmIoctlSimple[nvgpu.UVM_FREE_PARAMS], compUtil),
				},
				controlCmd: map[uint32]controlCmdHandler{
					nvgpu.NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2: ctrlHandler(rmControlSimple, compUtil),
					nvgpu.NV2080_CTRL_CMD_GPU_GET_ID:         ctrlHandler(rmControlSimple, compUtil|nvconf.CapGraphics),
					nvgpu.UNKNOWN_CONTROL_COMMAND_80028B:     ctrlHandler(rmControlSimple, compUtil), // no name
				},
				allocationClass: map[nvgpu.ClassID]allocationClassHandler{
					nvgpu.NV20_SUBDEVICE_0: allocHandler(rmAllocSimple[nvgpu.NV2080_ALLOC_PARAMETERS], compUtil),
				},

				getInfo: func() *DriverABIInfo {
					return &DriverABIInfo{
						FrontendInfos: map[uint32]IoctlInfo{
							nvgpu.NV_ESC_RM_FREE:             ioctlInfo("NV_ESC_RM_FREE", nvgpu.NVOS00_PARAMETERS{}),
							nvgpu.NV_ESC_REGISTER_FD:         ioctlInfoWithStructName(
								"NV_ESC_REGISTER_FD", nvgpu.IoctlRegisterFD{}, "nv_ioctl_register_fd_t"),
							nvgpu.NV_ESC_RM_VID_HEAP_CONTROL: ioctlInfo("NV_ESC_RM_VID_HEAP_CONTROL", nvgpu.NVOS32_PARAMETERS{}),
						},
						UvmInfos: map[uint32]IoctlInfo{
							nvgpu.UVM_DEINITIALIZE: simpleIoctlInfo("UVM_DEINITIALIZE"),
							nvgpu.UVM_FREE:         ioctlInfo("UVM_FREE", nvgpu.UVM_FREE_PARAMS{}),
						},
						ControlInfos: map[uint32]IoctlInfo{
							nvgpu.NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2: simpleIoctlInfo(
								"NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2", "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS"),
							nvgpu.NV2080_CTRL_CMD_GPU_GET_ID:         simpleIoctlInfo(
								"NV2080_CTRL_CMD_GPU_GET_ID", "NV2080_CTRL_GPU_GET_ID_PARAMS"),
							nvgpu.UNKNOWN_CONTROL_COMMAND_80028B:     simpleIoctlInfo(""),
						},
						AllocationInfos: map[nvgpu.ClassID]IoctlInfo{
							nvgpu.NV20_SUBDEVICE_0: ioctlInfo("NV20_SUBDEVICE_0", nvgpu.NV2080_ALLOC_PARAMETERS{}),
						},
					}
				},
			}
		})
		v580_105_08 := addDriverABI(580, 105, 8, "aa", "bb", v535_104_05)
		// CHANGES
		v590_44_01 := addUnsupportedDriverABI(590, 44, 01, func() *driverABI {
			abi := v580_105_08()
			abi.uvmIoctl[nvgpu.UVM_FREE] = uvmHandler(uvmIoctlSimple[nvgpu.UVM_FREE_PARAMS_V590], compUtil)
			delete(abi.controlCmd, nvgpu.UNKNOWN_CONTROL_COMMAND_80028B)

			prevGetInfo := abi.getInfo
			abi.getInfo = func() *DriverABIInfo {
				info := prevGetInfo()
				info.UvmInfos[nvgpu.UVM_FREE] = ioctlInfoWithStructName("UVM_FREE", nvgpu.UVM_FREE_PARAMS_V590{}, "UVM_FREE_PARAMS")
				delete(info.ControlInfos, nvgpu.UNKNOWN_CONTROL_COMMAND_80028B)
				return info
			}
			return abi
		})
		_ = addDriverABI(590, 48, 01, "cc", ChecksumNoDriver, v590_44_01)
	})
}

const ChecksumNoDriver = "NO_DRIVER"
"""

BARE = """
package nvproxy

func Init() {
	abisOnce.Do(func() {
		v535_104_05Checksum := "aa"
		v535_104_05 := addDriverABI(535, 104, 05, v535_104_05Checksum, func() *driverABI {
			return &driverABI{
				frontendIoctl: map[uint32]frontendIoctlHandler{
					nvgpu.NV_ESC_RM_FREE: rmFree,
				},
				uvmIoctl: map[uint32]uvmIoctlHandler{
					nvgpu.UVM_FREE: uvmIoctlSimple[nvgpu.UVM_FREE_PARAMS],
				},
				controlCmd: map[uint32]controlCmdHandler{
					nvgpu.NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2: rmControlSimple,
					0x80028b: rmControlSimple,
				},
				allocationClass: map[uint32]allocationClassHandler{
					nvgpu.NV20_SUBDEVICE_0: rmAllocSimple[nvgpu.NV2080_ALLOC_PARAMETERS],
				},
				useRmAllocParamsV535: false,
			}
		})

		// An intermediate version.
		v535_113_01 := v535_104_05
		v545_23_06 := func() *driverABI {
			abi := v535_113_01()
			abi.useRmAllocParamsV535 = true
			abi.controlCmd[(nvgpu.NV20_SUBDEVICE_0<<16)|0x0142] = rmControlSimple
			return abi
		}
		v550_54_14 := func() *driverABI {
			abi := v545_23_06()
			return abi
		}
		addDriverABI(550, 54, 14, "bb", v550_54_14)
		_ = addDriverABI(535, 129, 03, "cc", v535_113_01)
	})
}
"""

TAGGED = """
package nvproxy

func Init() {
	abisOnce.Do(func() {
		v535_104_05 := func() *driverABI {
			const both = compUtil
			return &driverABI{
				frontendIoctl: map[uint32]frontendIoctlHandler{
					nvgpu.NV_ESC_RM_FREE: feHandler(rmFree, both),
				},
				uvmIoctl:   map[uint32]uvmIoctlHandler{},
				controlCmd: map[uint32]controlCmdHandler{
					0x80028b: ctrlHandler(ctrlFailureWithStatus(nvgpu.NV_ERR_NOT_SUPPORTED), both),
				},
				allocationClass: map[nvgpu.ClassID]allocationClassHandler{},

				getStructNames: func() *driverStructNames {
					return &driverStructNames{
						frontendNames: map[uint32][]DriverStruct{
							nvgpu.NV_ESC_RM_FREE: append(getStructName(nvgpu.Tagged{}), getStructName(nvgpu.TaggedSame{})...),
						},
						uvmNames:     map[uint32][]DriverStruct{},
						controlNames: map[uint32][]DriverStruct{
							0x80028b: nil,
						},
						allocationNames: map[nvgpu.ClassID][]DriverStruct{},
					}
				},
			}
		}
		_ = addDriverABI(535, 104, 12, "aa", v535_104_05)
		v550_100 := v535_104_05
	})
}
"""

TAGGED_TYPES = """
package nvgpu

const NV_ERR_NOT_SUPPORTED = 0x56

type Tagged struct {
	A uint32 `nvproxy:"NVOS00_PARAMETERS"`
	B [3]uint32
}

type TaggedSame struct {
	TaggedInner `nvproxy:"same"`
	C uint64
}

type TaggedInner struct {
	D uint16
}
"""


def write(
    root: Path,
    version_go: str = MODERN,
    nvgpu: str = NVGPU,
    caps: str | None = CAPS,
    more: dict[str, str] | None = None,
) -> Path:
    """Writes a tree and returns its root. ``more``: path -> text of further files."""
    nvproxy = "pkg/sentry/devices/nvproxy"
    files = {
        "pkg/abi/nvgpu/nvgpu.go": nvgpu,
        f"{nvproxy}/version.go": version_go,
        f"{nvproxy}/seccomp_filters.go": FILTERS,
        **({f"{nvproxy}/nvconf/caps.go": caps} if caps else {}),
        **(more or {}),
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
