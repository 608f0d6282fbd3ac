package kernel

import (
	"fmt"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// method is a method of an ioctl.
type method struct{ object, method uint16 }

// methodNames are the names of methods, without the prefix UVERBS_METHOD_.
var methodNames = map[method]string{
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INVOKE_WRITE}:                "INVOKE_WRITE",
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INFO_HANDLES}:                "INFO_HANDLES",
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_PORT}:                  "QUERY_PORT",
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT}:                 "GET_CONTEXT",
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_CONTEXT}:               "QUERY_CONTEXT",
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_GID_TABLE}:             "QUERY_GID_TABLE",
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_GID_ENTRY}:             "QUERY_GID_ENTRY",
	{abi.UVERBS_OBJECT_PD, abi.UVERBS_METHOD_PD_DESTROY}:                      "PD_DESTROY",
	{abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_CREATE}:                       "CQ_CREATE",
	{abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_DESTROY}:                      "CQ_DESTROY",
	{abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_CREATE}:                       "QP_CREATE",
	{abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_DESTROY}:                      "QP_DESTROY",
	{abi.UVERBS_OBJECT_SRQ, abi.UVERBS_METHOD_SRQ_CREATE}:                     "SRQ_CREATE",
	{abi.UVERBS_OBJECT_SRQ, abi.UVERBS_METHOD_SRQ_DESTROY}:                    "SRQ_DESTROY",
	{abi.UVERBS_OBJECT_AH, abi.UVERBS_METHOD_AH_DESTROY}:                      "AH_DESTROY",
	{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_DM_MR_REG}:                       "DM_MR_REG",
	{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_MR_DESTROY}:                      "MR_DESTROY",
	{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_ADVISE_MR}:                       "ADVISE_MR",
	{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_QUERY_MR}:                        "QUERY_MR",
	{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_REG_DMABUF_MR}:                   "REG_DMABUF_MR",
	{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_REG_MR}:                          "REG_MR",
	{abi.UVERBS_OBJECT_MW, abi.UVERBS_METHOD_MW_DESTROY}:                      "MW_DESTROY",
	{abi.UVERBS_OBJECT_FLOW, abi.UVERBS_METHOD_FLOW_DESTROY}:                  "FLOW_DESTROY",
	{abi.UVERBS_OBJECT_XRCD, abi.UVERBS_METHOD_XRCD_DESTROY}:                  "XRCD_DESTROY",
	{abi.UVERBS_OBJECT_RWQ_IND_TBL, abi.UVERBS_METHOD_RWQ_IND_TBL_DESTROY}:    "RWQ_IND_TBL_DESTROY",
	{abi.UVERBS_OBJECT_WQ, abi.UVERBS_METHOD_WQ_CREATE}:                       "WQ_CREATE",
	{abi.UVERBS_OBJECT_WQ, abi.UVERBS_METHOD_WQ_DESTROY}:                      "WQ_DESTROY",
	{abi.UVERBS_OBJECT_FLOW_ACTION, abi.UVERBS_METHOD_FLOW_ACTION_DESTROY}:    "FLOW_ACTION_DESTROY",
	{abi.UVERBS_OBJECT_DM, abi.UVERBS_METHOD_DM_ALLOC}:                        "DM_ALLOC",
	{abi.UVERBS_OBJECT_DM, abi.UVERBS_METHOD_DM_FREE}:                         "DM_FREE",
	{abi.UVERBS_OBJECT_COUNTERS, abi.UVERBS_METHOD_COUNTERS_CREATE}:           "COUNTERS_CREATE",
	{abi.UVERBS_OBJECT_COUNTERS, abi.UVERBS_METHOD_COUNTERS_DESTROY}:          "COUNTERS_DESTROY",
	{abi.UVERBS_OBJECT_COUNTERS, abi.UVERBS_METHOD_COUNTERS_READ}:             "COUNTERS_READ",
	{abi.UVERBS_OBJECT_ASYNC_EVENT, abi.UVERBS_METHOD_ASYNC_EVENT_ALLOC}:      "ASYNC_EVENT_ALLOC",
	{abi.UVERBS_OBJECT_DMAH, abi.UVERBS_METHOD_DMAH_ALLOC}:                    "DMAH_ALLOC",
	{abi.UVERBS_OBJECT_DMAH, abi.UVERBS_METHOD_DMAH_FREE}:                     "DMAH_FREE",
	{abi.UVERBS_OBJECT_FLOW_ACTION, abi.UVERBS_METHOD_FLOW_ACTION_ESP_CREATE}: "FLOW_ACTION_ESP_CREATE",
	{abi.UVERBS_OBJECT_FLOW_ACTION, abi.UVERBS_METHOD_FLOW_ACTION_ESP_MODIFY}: "FLOW_ACTION_ESP_MODIFY",
}

// commandNames are the names of legacy commands, without the prefix IB_USER_VERBS_CMD_.
var commandNames = map[uint32]string{
	abi.IB_USER_VERBS_CMD_GET_CONTEXT:         "GET_CONTEXT",
	abi.IB_USER_VERBS_CMD_QUERY_DEVICE:        "QUERY_DEVICE",
	abi.IB_USER_VERBS_CMD_QUERY_PORT:          "QUERY_PORT",
	abi.IB_USER_VERBS_CMD_ALLOC_PD:            "ALLOC_PD",
	abi.IB_USER_VERBS_CMD_DEALLOC_PD:          "DEALLOC_PD",
	abi.IB_USER_VERBS_CMD_CREATE_AH:           "CREATE_AH",
	abi.IB_USER_VERBS_CMD_DESTROY_AH:          "DESTROY_AH",
	abi.IB_USER_VERBS_CMD_REG_MR:              "REG_MR",
	abi.IB_USER_VERBS_CMD_REREG_MR:            "REREG_MR",
	abi.IB_USER_VERBS_CMD_DEREG_MR:            "DEREG_MR",
	abi.IB_USER_VERBS_CMD_ALLOC_MW:            "ALLOC_MW",
	abi.IB_USER_VERBS_CMD_DEALLOC_MW:          "DEALLOC_MW",
	abi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL: "CREATE_COMP_CHANNEL",
	abi.IB_USER_VERBS_CMD_CREATE_CQ:           "CREATE_CQ",
	abi.IB_USER_VERBS_CMD_RESIZE_CQ:           "RESIZE_CQ",
	abi.IB_USER_VERBS_CMD_DESTROY_CQ:          "DESTROY_CQ",
	abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ:       "REQ_NOTIFY_CQ",
	abi.IB_USER_VERBS_CMD_CREATE_QP:           "CREATE_QP",
	abi.IB_USER_VERBS_CMD_QUERY_QP:            "QUERY_QP",
	abi.IB_USER_VERBS_CMD_MODIFY_QP:           "MODIFY_QP",
	abi.IB_USER_VERBS_CMD_DESTROY_QP:          "DESTROY_QP",
	abi.IB_USER_VERBS_CMD_POST_SEND:           "POST_SEND",
	abi.IB_USER_VERBS_CMD_POST_RECV:           "POST_RECV",
	abi.IB_USER_VERBS_CMD_ATTACH_MCAST:        "ATTACH_MCAST",
	abi.IB_USER_VERBS_CMD_DETACH_MCAST:        "DETACH_MCAST",
	abi.IB_USER_VERBS_CMD_CREATE_SRQ:          "CREATE_SRQ",
	abi.IB_USER_VERBS_CMD_MODIFY_SRQ:          "MODIFY_SRQ",
	abi.IB_USER_VERBS_CMD_QUERY_SRQ:           "QUERY_SRQ",
	abi.IB_USER_VERBS_CMD_DESTROY_SRQ:         "DESTROY_SRQ",
	abi.IB_USER_VERBS_CMD_POST_SRQ_RECV:       "POST_SRQ_RECV",
	abi.IB_USER_VERBS_CMD_OPEN_XRCD:           "OPEN_XRCD",
	abi.IB_USER_VERBS_CMD_CLOSE_XRCD:          "CLOSE_XRCD",
	abi.IB_USER_VERBS_CMD_CREATE_XSRQ:         "CREATE_XSRQ",
	abi.IB_USER_VERBS_CMD_OPEN_QP:             "OPEN_QP",

	abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE:        "QUERY_DEVICE_EX",
	abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_CREATE_CQ:           "CREATE_CQ_EX",
	abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_CREATE_QP:           "CREATE_QP_EX",
	abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_MODIFY_QP:           "MODIFY_QP_EX",
	abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_CREATE_FLOW:         "CREATE_FLOW",
	abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_DESTROY_FLOW:        "DESTROY_FLOW",
	abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_CREATE_WQ:           "CREATE_WQ",
	abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_MODIFY_WQ:           "MODIFY_WQ",
	abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_DESTROY_WQ:          "DESTROY_WQ",
	abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL:  "CREATE_RWQ_IND_TBL",
	abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL: "DESTROY_RWQ_IND_TBL",
	abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_MODIFY_CQ:           "MODIFY_CQ",
}

// describe names a command for a trace, such as "ioctl QP_CREATE" or "write MODIFY_QP".
func describe(c *Command, byWrite bool) string {
	how := "ioctl"
	if byWrite {
		how = "write"
	}
	l, legacy := c.Legacy()
	switch {
	case legacy && byWrite:
		return how + " " + pickName(commandNames[l.Number], fmt.Sprintf("command %d", l.Number))
	case legacy:
		return how + " INVOKE_WRITE of " + pickName(commandNames[l.Number], fmt.Sprintf("command %d", l.Number))
	}
	return how + " " + pickName(methodNames[method{c.Object, c.Method}], fmt.Sprintf("object %d method %d", c.Object, c.Method))
}

// pickName returns a name, or what stands for it if there is none.
func pickName(name, otherwise string) string {
	if name == "" {
		return otherwise
	}
	return name
}
