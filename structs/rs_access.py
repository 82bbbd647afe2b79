"""rs_access.h: access rights."""

from nvproxy_model.fields import CStruct, NvU8, NvU16, NvU32, typedef

RS_ACCESS_MASK = CStruct(
    "RS_ACCESS_MASK",
    "limbs" / typedef("RsAccessLimb", NvU32)[1],
)

RS_SHARE_POLICY = CStruct(
    "RS_SHARE_POLICY",
    "target" / NvU32,
    "accessMask" / RS_ACCESS_MASK,
    "type" / NvU16,
    "action" / NvU8,
)
