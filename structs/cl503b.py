"""class/cl503b.h: peer-to-peer objects."""

from nvproxy_model.fields import CStruct, Handle, NvU32, NvU64, since

NV503B_BAR1_P2P_DMA_INFO = CStruct(
    "NV503B_BAR1_P2P_DMA_INFO",
    "dma_address" / NvU64,
    "dma_size" / NvU64,
)

NV503B_FABRIC_P2P_DMA_INFO = CStruct(
    "NV503B_FABRIC_P2P_DMA_INFO",
    "gpa" / NvU64,
    since="590.44.01",
)

NV503B_ALLOC_PARAMETERS = CStruct(
    "NV503B_ALLOC_PARAMETERS",
    "hSubDevice" / Handle(),
    "hPeerSubDevice" / Handle(),
    "subDevicePeerIdMask" / NvU32,
    "peerSubDevicePeerIdMask" / NvU32,
    "mailboxBar1Addr" / NvU64,
    "mailboxTotalSize" / NvU32,
    "flags" / NvU32,
    "subDeviceEgmPeerIdMask" / NvU32,
    "peerSubDeviceEgmPeerIdMask" / NvU32,
    "l2pBar1P2PDmaInfo" / NV503B_BAR1_P2P_DMA_INFO,
    "p2lBar1P2PDmaInfo" / NV503B_BAR1_P2P_DMA_INFO,
    since(
        "590.44.01", "l2pFabricP2PInfo" / NV503B_FABRIC_P2P_DMA_INFO, "p2lFabricP2PInfo" / NV503B_FABRIC_P2P_DMA_INFO
    ),
)
