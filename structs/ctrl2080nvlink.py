"""ctrl/ctrl2080/ctrl2080nvlink.h: remap tables of NVLink."""

from nvproxy_model.fields import CStruct, NvU32, since

NV2080_CTRL_NVLINK_GET_REMAP_TABLE_INFO_V2_PARAMS = CStruct(
    "NV2080_CTRL_NVLINK_GET_REMAP_TABLE_INFO_V2_PARAMS",
    # 610.57.04's header, the newest public one, has no alid; gVisor's struct of 620.06.00 has.
    since("620.06.00", "alid" / NvU32),
    "flaRemapTabAddr" / NvU32[128],
    "gpaRemapTabAddr" / NvU32[128],
    "remapTabSize" / NvU32,
    "remapEntryStart" / NvU32,
    "remapEntryEnd" / NvU32,
    since="610.43.02",
)
