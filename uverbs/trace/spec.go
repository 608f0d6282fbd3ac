package trace

import (
	"strings"
	"sync"
)

// spec says what the headers do not. Its lines are
//
//	object OBJECT METHODS            an object, and the enum of its methods
//	method METHOD ATTRIBUTES         a method, and the enum of its attributes
//	attr ATTRIBUTE TYPE              the struct, enum or flags that an attribute has, or what its number is
//	output ATTRIBUTE                 an attribute that the kernel writes, where its name has no RESP or OUT
//	driver DRIVER COMMAND IN OUT     the structs that a driver adds to a command, "-" for none
//
// A line of an object or a method can come again, for a driver that adds to it.
const spec = `
object UVERBS_OBJECT_DEVICE uverbs_methods_device
object UVERBS_OBJECT_DEVICE mlx5_ib_device_methods
object UVERBS_OBJECT_PD uverbs_methods_pd
object UVERBS_OBJECT_PD mlx5_ib_pd_methods
object UVERBS_OBJECT_COMP_CHANNEL -
object UVERBS_OBJECT_CQ uverbs_methods_cq
object UVERBS_OBJECT_QP uverbs_methods_qp
object UVERBS_OBJECT_SRQ uverbs_methods_srq
object UVERBS_OBJECT_AH uverbs_methods_ah
object UVERBS_OBJECT_MR uverbs_methods_mr
object UVERBS_OBJECT_MW uverbs_methods_mw
object UVERBS_OBJECT_FLOW uverbs_methods_flow
object UVERBS_OBJECT_FLOW mlx5_ib_flow_methods
object UVERBS_OBJECT_XRCD uverbs_methods_xrcd
object UVERBS_OBJECT_RWQ_IND_TBL uverbs_methods_rwq_ind_tbl
object UVERBS_OBJECT_WQ uverbs_methods_wq
object UVERBS_OBJECT_FLOW_ACTION uverbs_methods_actions_flow_action_ops
object UVERBS_OBJECT_FLOW_ACTION mlx5_ib_flow_action_methods
object UVERBS_OBJECT_DM uverbs_methods_dm
object UVERBS_OBJECT_DM mlx5_ib_dm_methods
object UVERBS_OBJECT_COUNTERS uverbs_methods_actions_counters_ops
object UVERBS_OBJECT_ASYNC_EVENT uverbs_method_async_event
object UVERBS_OBJECT_DMAH uverbs_methods_dmah
object UVERBS_OBJECT_DMABUF uverbs_methods_dmabuf
object UVERBS_OBJECT_COMP_CNTR uverbs_methods_comp_cntr
object MLX5_IB_OBJECT_DEVX mlx5_ib_devx_methods
object MLX5_IB_OBJECT_DEVX_OBJ mlx5_ib_devx_obj_methods
object MLX5_IB_OBJECT_DEVX_UMEM mlx5_ib_devx_umem_methods
object MLX5_IB_OBJECT_FLOW_MATCHER mlx5_ib_flow_matcher_methods
object MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD mlx5_ib_devx_async_cmd_fd_methods
object MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD mlx5_ib_devx_async_event_fd_methods
object MLX5_IB_OBJECT_VAR mlx5_ib_var_obj_methods
object MLX5_IB_OBJECT_PP mlx5_ib_pp_obj_methods
object MLX5_IB_OBJECT_UAR mlx5_ib_uar_obj_methods
object MLX5_IB_OBJECT_STEERING_ANCHOR mlx5_ib_steering_anchor_methods

method UVERBS_METHOD_INVOKE_WRITE uverbs_attrs_invoke_write_cmd_attr_ids
method UVERBS_METHOD_INFO_HANDLES uverbs_attrs_info_handles_id
method UVERBS_METHOD_QUERY_PORT uverbs_attrs_query_port_cmd_attr_ids
method UVERBS_METHOD_QUERY_PORT_SPEED uverbs_attrs_query_port_speed_cmd_attr_ids
method UVERBS_METHOD_QUERY_COMP_CNTR_CAPS uverbs_attrs_query_comp_cntr_caps_attr_ids
method UVERBS_METHOD_GET_CONTEXT uverbs_attrs_get_context_attr_ids
method UVERBS_METHOD_QUERY_CONTEXT uverbs_attrs_query_context_attr_ids
method UVERBS_METHOD_QUERY_CONTEXT mlx5_ib_device_query_context_attrs
method UVERBS_METHOD_QUERY_GID_TABLE uverbs_attrs_query_gid_table_cmd_attr_ids
method UVERBS_METHOD_QUERY_GID_ENTRY uverbs_attrs_query_gid_entry_cmd_attr_ids
method UVERBS_METHOD_CQ_CREATE uverbs_attrs_create_cq_cmd_attr_ids
method UVERBS_METHOD_CQ_CREATE mlx5_ib_create_cq_attrs
method UVERBS_METHOD_CQ_DESTROY uverbs_attrs_destroy_cq_cmd_attr_ids
method UVERBS_METHOD_FLOW_ACTION_ESP_CREATE uverbs_attrs_create_flow_action_esp
method UVERBS_METHOD_FLOW_ACTION_ESP_CREATE mlx5_ib_create_flow_action_attrs
method UVERBS_METHOD_FLOW_ACTION_DESTROY uverbs_attrs_destroy_flow_action_esp
method UVERBS_METHOD_FLOW_ACTION_ESP_MODIFY uverbs_attrs_modify_flow_action_esp
method UVERBS_METHOD_QP_CREATE uverbs_attrs_create_qp_cmd_attr_ids
method UVERBS_METHOD_QP_CREATE mlx5_ib_create_qp_attrs
method UVERBS_METHOD_QP_DESTROY uverbs_attrs_destroy_qp_cmd_attr_ids
method UVERBS_METHOD_QP_ATTACH_COMP_CNTR uverbs_attrs_qp_attach_comp_cntr_cmd_attr_ids
method UVERBS_METHOD_COMP_CNTR_CREATE uverbs_attrs_create_comp_cntr_cmd_attr_ids
method UVERBS_METHOD_COMP_CNTR_DESTROY uverbs_attrs_destroy_comp_cntr_cmd_attr_ids
method UVERBS_METHOD_COMP_CNTR_MODIFY uverbs_attrs_modify_comp_cntr_cmd_attr_ids
method UVERBS_METHOD_COMP_CNTR_READ uverbs_attrs_read_comp_cntr_cmd_attr_ids
method UVERBS_METHOD_SRQ_CREATE uverbs_attrs_create_srq_cmd_attr_ids
method UVERBS_METHOD_SRQ_CREATE mlx5_ib_create_srq_attrs
method UVERBS_METHOD_SRQ_DESTROY uverbs_attrs_destroy_srq_cmd_attr_ids
method UVERBS_METHOD_WQ_CREATE uverbs_attrs_create_wq_cmd_attr_ids
method UVERBS_METHOD_WQ_DESTROY uverbs_attrs_destroy_wq_cmd_attr_ids
method UVERBS_METHOD_DM_ALLOC uverbs_attrs_alloc_dm_cmd_attr_ids
method UVERBS_METHOD_DM_ALLOC mlx5_ib_alloc_dm_attrs
method UVERBS_METHOD_DM_FREE uverbs_attrs_free_dm_cmd_attr_ids
method UVERBS_METHOD_DMAH_ALLOC uverbs_attrs_alloc_dmah_cmd_attr_ids
method UVERBS_METHOD_DMAH_FREE uverbs_attrs_free_dmah_cmd_attr_ids
method UVERBS_METHOD_DMABUF_ALLOC uverbs_attrs_alloc_dmabuf_cmd_attr_ids
method UVERBS_METHOD_DM_MR_REG uverbs_attrs_reg_dm_mr_cmd_attr_ids
method UVERBS_METHOD_MR_DESTROY uverbs_attrs_mr_destroy_ids
method UVERBS_METHOD_ADVISE_MR uverbs_attrs_advise_mr_cmd_attr_ids
method UVERBS_METHOD_QUERY_MR uverbs_attrs_query_mr_cmd_attr_ids
method UVERBS_METHOD_REG_DMABUF_MR uverbs_attrs_reg_dmabuf_mr_cmd_attr_ids
method UVERBS_METHOD_REG_DMABUF_MR mlx5_ib_reg_dmabuf_mr_attrs
method UVERBS_METHOD_REG_MR uverbs_attrs_reg_mr_cmd_attr_ids
method UVERBS_METHOD_COUNTERS_CREATE uverbs_attrs_create_counters_cmd_attr_ids
method UVERBS_METHOD_COUNTERS_DESTROY uverbs_attrs_destroy_counters_cmd_attr_ids
method UVERBS_METHOD_COUNTERS_READ uverbs_attrs_read_counters_cmd_attr_ids
method UVERBS_METHOD_PD_DESTROY uverbs_attrs_pd_destroy_ids
method UVERBS_METHOD_MW_DESTROY uverbs_attrs_mw_destroy_ids
method UVERBS_METHOD_XRCD_DESTROY uverbs_attrs_xrcd_destroy_ids
method UVERBS_METHOD_AH_DESTROY uverbs_attrs_ah_destroy_ids
method UVERBS_METHOD_RWQ_IND_TBL_DESTROY uverbs_attrs_rwq_ind_tbl_destroy_ids
method UVERBS_METHOD_FLOW_DESTROY uverbs_attrs_flow_destroy_ids
method UVERBS_METHOD_ASYNC_EVENT_ALLOC uverbs_attrs_async_event_create
method MLX5_IB_METHOD_DM_MAP_OP_ADDR mlx5_ib_dm_map_op_addr_attrs
method MLX5_IB_METHOD_DM_QUERY mlx5_ib_query_dm_attrs
method MLX5_IB_METHOD_DEVX_OTHER mlx5_ib_devx_other_attrs
method MLX5_IB_METHOD_DEVX_QUERY_UAR mlx5_ib_devx_query_uar_attrs
method MLX5_IB_METHOD_DEVX_QUERY_EQN mlx5_ib_devx_query_eqn_attrs
method MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT mlx5_ib_devx_subscribe_event_attrs
method MLX5_IB_METHOD_DEVX_OBJ_CREATE mlx5_ib_devx_obj_create_attrs
method MLX5_IB_METHOD_DEVX_OBJ_DESTROY mlx5_ib_devx_obj_destroy_attrs
method MLX5_IB_METHOD_DEVX_OBJ_MODIFY mlx5_ib_devx_obj_modify_attrs
method MLX5_IB_METHOD_DEVX_OBJ_QUERY mlx5_ib_devx_obj_query_attrs
method MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY mlx5_ib_devx_obj_query_async_attrs
method MLX5_IB_METHOD_VAR_OBJ_ALLOC mlx5_ib_var_alloc_attrs
method MLX5_IB_METHOD_VAR_OBJ_DESTROY mlx5_ib_var_obj_destroy_attrs
method MLX5_IB_METHOD_UAR_OBJ_ALLOC mlx5_ib_uar_alloc_attrs
method MLX5_IB_METHOD_UAR_OBJ_DESTROY mlx5_ib_uar_obj_destroy_attrs
method MLX5_IB_METHOD_DEVX_UMEM_REG mlx5_ib_devx_umem_reg_attrs
method MLX5_IB_METHOD_DEVX_UMEM_DEREG mlx5_ib_devx_umem_dereg_attrs
method MLX5_IB_METHOD_PP_OBJ_ALLOC mlx5_ib_pp_alloc_attrs
method MLX5_IB_METHOD_PP_OBJ_DESTROY mlx5_ib_pp_obj_destroy_attrs
method MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_ALLOC mlx5_ib_devx_async_cmd_fd_alloc_attrs
method MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC mlx5_ib_devx_async_event_fd_alloc_attrs
method MLX5_IB_METHOD_FLOW_MATCHER_CREATE mlx5_ib_flow_matcher_create_attrs
method MLX5_IB_METHOD_FLOW_MATCHER_DESTROY mlx5_ib_flow_matcher_destroy_attrs
method MLX5_IB_METHOD_STEERING_ANCHOR_CREATE mlx5_ib_flow_steering_anchor_create_attrs
method MLX5_IB_METHOD_STEERING_ANCHOR_DESTROY mlx5_ib_flow_steering_anchor_destroy_attrs
method MLX5_IB_METHOD_CREATE_FLOW mlx5_ib_create_flow_attrs
method MLX5_IB_METHOD_DESTROY_FLOW mlx5_ib_destroy_flow_attrs
method MLX5_IB_METHOD_FLOW_ACTION_CREATE_MODIFY_HEADER mlx5_ib_create_flow_action_create_modify_header_attrs
method MLX5_IB_METHOD_FLOW_ACTION_CREATE_PACKET_REFORMAT mlx5_ib_create_flow_action_create_packet_reformat_attrs
method MLX5_IB_METHOD_PD_QUERY mlx5_ib_query_pd_attrs
method MLX5_IB_METHOD_QUERY_PORT mlx5_ib_query_port_attrs
method MLX5_IB_METHOD_GET_DATA_DIRECT_SYSFS_PATH mlx5_ib_get_data_direct_sysfs_path_attrs

attr UVERBS_ATTR_INFO_OBJECT_ID uverbs_default_objects
attr UVERBS_ATTR_QUERY_PORT_RESP ib_uverbs_query_port_resp_ex
attr UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT ib_uverbs_core_support
attr UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT ib_uverbs_core_support
attr UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES ib_uverbs_gid_entry
attr UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY ib_uverbs_gid_entry
attr UVERBS_ATTR_CREATE_CQ_FLAGS ib_uverbs_ex_create_cq_flags
attr UVERBS_ATTR_CREATE_CQ_BUF_UMEM ib_uverbs_buffer_desc
attr UVERBS_ATTR_DESTROY_CQ_RESP ib_uverbs_destroy_cq_resp
attr UVERBS_ATTR_FLOW_ACTION_ESP_ATTRS ib_uverbs_flow_action_esp
attr UVERBS_ATTR_FLOW_ACTION_ESP_KEYMAT ib_uverbs_flow_action_esp_keymat_aes_gcm
attr UVERBS_ATTR_FLOW_ACTION_ESP_REPLAY ib_uverbs_flow_action_esp_replay_bmp
attr UVERBS_ATTR_FLOW_ACTION_ESP_ENCAP ib_uverbs_flow_action_esp_encap
attr UVERBS_ATTR_CREATE_QP_CAP ib_uverbs_qp_cap
attr UVERBS_ATTR_CREATE_QP_RESP_CAP ib_uverbs_qp_cap
attr UVERBS_ATTR_CREATE_QP_TYPE ib_uverbs_qp_type
attr UVERBS_ATTR_CREATE_QP_FLAGS ib_uverbs_qp_create_flags
attr UVERBS_ATTR_CREATE_QP_BUF_UMEM ib_uverbs_buffer_desc
attr UVERBS_ATTR_CREATE_QP_RQ_BUF_UMEM ib_uverbs_buffer_desc
attr UVERBS_ATTR_CREATE_QP_SQ_BUF_UMEM ib_uverbs_buffer_desc
attr UVERBS_ATTR_DESTROY_QP_RESP ib_uverbs_destroy_qp_resp
attr UVERBS_ATTR_CREATE_SRQ_TYPE ib_uverbs_srq_type
attr UVERBS_ATTR_CREATE_SRQ_BUF_UMEM ib_uverbs_buffer_desc
attr UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_SUPPORTED_QP_ATTACH_OPS ib_uverbs_qp_attach_comp_cntr_op
attr UVERBS_ATTR_QP_ATTACH_COMP_CNTR_OP_MASK ib_uverbs_qp_attach_comp_cntr_op
attr UVERBS_ATTR_MODIFY_COMP_CNTR_ENTRY ib_uverbs_comp_cntr_entry
attr UVERBS_ATTR_MODIFY_COMP_CNTR_OP ib_uverbs_comp_cntr_modify_op
attr UVERBS_ATTR_READ_COMP_CNTR_ENTRY ib_uverbs_comp_cntr_entry
attr UVERBS_ATTR_DESTROY_SRQ_RESP ib_uverbs_destroy_srq_resp
attr UVERBS_ATTR_CREATE_WQ_TYPE ib_uverbs_wq_type
attr UVERBS_ATTR_CREATE_WQ_FLAGS ib_uverbs_wq_flags
attr UVERBS_ATTR_DESTROY_WQ_RESP ib_uverbs_ex_destroy_wq_resp
attr UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS ib_uverbs_access_flags
attr UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS ib_uverbs_access_flags
attr UVERBS_ATTR_REG_MR_ACCESS_FLAGS ib_uverbs_access_flags
attr UVERBS_ATTR_ADVISE_MR_ADVICE ib_uverbs_advise_mr_advice
attr UVERBS_ATTR_ADVISE_MR_FLAGS ib_uverbs_advise_mr_flag
attr UVERBS_ATTR_ADVISE_MR_SGE_LIST ib_uverbs_sge
attr UVERBS_ATTR_READ_COUNTERS_FLAGS ib_uverbs_read_counters_flags
attr MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX mlx5_ib_alloc_ucontext_resp
attr MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE mlx5_ib_uapi_dm_type
attr MLX5_IB_ATTR_CREATE_CQ_DBR_BUF_UMEM ib_uverbs_buffer_desc
attr MLX5_IB_ATTR_CREATE_QP_DBR_BUF_UMEM ib_uverbs_buffer_desc
attr MLX5_IB_ATTR_CREATE_SRQ_DBR_BUF_UMEM ib_uverbs_buffer_desc
attr MLX5_IB_ATTR_REG_DMABUF_MR_ACCESS_FLAGS mlx5_ib_uapi_reg_dmabuf_flags
attr MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE mlx5_ib_uapi_uar_alloc_type
attr MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS ib_uverbs_access_flags
attr MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS mlx5_ib_uapi_devx_create_event_channel_flags
attr MLX5_IB_ATTR_VAR_OBJ_ALLOC_FLAGS mlx5_ib_uapi_var_alloc_flags
attr MLX5_IB_ATTR_PP_OBJ_ALLOC_FLAGS mlx5_ib_uapi_pp_alloc_flags
attr MLX5_IB_ATTR_FLOW_MATCHER_FLOW_TYPE mlx5_ib_flow_type
attr MLX5_IB_ATTR_FLOW_MATCHER_FT_TYPE mlx5_ib_uapi_flow_table_type
attr MLX5_IB_ATTR_STEERING_ANCHOR_FT_TYPE mlx5_ib_uapi_flow_table_type
attr MLX5_IB_ATTR_CREATE_FLOW_FLAGS mlx5_ib_create_flow_flags
attr MLX5_IB_ATTR_CREATE_MODIFY_HEADER_FT_TYPE mlx5_ib_uapi_flow_table_type
attr MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_FT_TYPE mlx5_ib_uapi_flow_table_type
attr MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_TYPE mlx5_ib_uapi_flow_action_packet_reformat_type
attr MLX5_IB_ATTR_QUERY_PORT mlx5_ib_uapi_query_port

output UVERBS_ATTR_INFO_TOTAL_HANDLES
output UVERBS_ATTR_INFO_HANDLES_LIST
output UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS
output UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT
output UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS
output UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT
output UVERBS_ATTR_READ_COUNTERS_BUFF
output UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_COUNTERS
output UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_VALUE
output UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_SUPPORTED_QP_ATTACH_OPS
output MLX5_IB_ATTR_DEVX_QUERY_UAR_DEV_IDX
output MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN
output MLX5_IB_ATTR_VAR_OBJ_ALLOC_MMAP_OFFSET
output MLX5_IB_ATTR_VAR_OBJ_ALLOC_MMAP_LENGTH
output MLX5_IB_ATTR_VAR_OBJ_ALLOC_PAGE_ID
output MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET
output MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH
output MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID
output MLX5_IB_ATTR_PP_OBJ_ALLOC_INDEX
output MLX5_IB_ATTR_STEERING_ANCHOR_FT_ID
output MLX5_IB_ATTR_QUERY_PORT
output MLX5_IB_ATTR_GET_DATA_DIRECT_SYSFS_PATH

driver RDMA_DRIVER_RXE CREATE_AH - rxe_create_ah_resp
driver RDMA_DRIVER_RXE CREATE_CQ - rxe_create_cq_resp
driver RDMA_DRIVER_RXE RESIZE_CQ - rxe_resize_cq_resp
driver RDMA_DRIVER_RXE CREATE_QP - rxe_create_qp_resp
driver RDMA_DRIVER_RXE CREATE_SRQ - rxe_create_srq_resp
driver RDMA_DRIVER_RXE MODIFY_SRQ rxe_modify_srq_cmd -
driver RDMA_DRIVER_SIW GET_CONTEXT - siw_uresp_alloc_ctx
driver RDMA_DRIVER_SIW CREATE_CQ - siw_uresp_create_cq
driver RDMA_DRIVER_SIW CREATE_QP - siw_uresp_create_qp
driver RDMA_DRIVER_SIW CREATE_SRQ - siw_uresp_create_srq
driver RDMA_DRIVER_SIW REG_MR siw_ureq_reg_mr siw_uresp_reg_mr
driver RDMA_DRIVER_MLX5 GET_CONTEXT mlx5_ib_alloc_ucontext_req_v2 mlx5_ib_alloc_ucontext_resp
driver RDMA_DRIVER_MLX5 QUERY_DEVICE - mlx5_ib_query_device_resp
driver RDMA_DRIVER_MLX5 ALLOC_PD - mlx5_ib_alloc_pd_resp
driver RDMA_DRIVER_MLX5 CREATE_AH - mlx5_ib_create_ah_resp
driver RDMA_DRIVER_MLX5 CREATE_CQ mlx5_ib_create_cq mlx5_ib_create_cq_resp
driver RDMA_DRIVER_MLX5 RESIZE_CQ mlx5_ib_resize_cq -
driver RDMA_DRIVER_MLX5 CREATE_QP mlx5_ib_create_qp mlx5_ib_create_qp_resp
driver RDMA_DRIVER_MLX5 MODIFY_QP mlx5_ib_modify_qp mlx5_ib_modify_qp_resp
driver RDMA_DRIVER_MLX5 CREATE_SRQ mlx5_ib_create_srq mlx5_ib_create_srq_resp
driver RDMA_DRIVER_MLX5 CREATE_XSRQ mlx5_ib_create_srq mlx5_ib_create_srq_resp
driver RDMA_DRIVER_MLX5 ALLOC_MW mlx5_ib_alloc_mw -
driver RDMA_DRIVER_MLX5 CREATE_WQ mlx5_ib_create_wq mlx5_ib_create_wq_resp
driver RDMA_DRIVER_MLX5 MODIFY_WQ mlx5_ib_modify_wq -
driver RDMA_DRIVER_MLX5 CREATE_RWQ_IND_TBL - mlx5_ib_create_rwq_ind_tbl_resp
driver RDMA_DRIVER_MLX5 CREATE_FLOW mlx5_ib_create_flow -
`

// commandStructs are the structs of commands whose names do not follow from the command's.
var commandStructs = map[string][2]string{
	"IB_USER_VERBS_CMD_CREATE_XSRQ":            {"ib_uverbs_create_xsrq", "ib_uverbs_create_srq_resp"},
	"IB_USER_VERBS_CMD_OPEN_QP":                {"ib_uverbs_open_qp", "ib_uverbs_create_qp_resp"},
	"IB_USER_VERBS_EX_CMD_CREATE_FLOW":         {"ib_uverbs_create_flow", "ib_uverbs_create_flow_resp"},
	"IB_USER_VERBS_EX_CMD_DESTROY_FLOW":        {"ib_uverbs_destroy_flow", ""},
	"IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL":  {"ib_uverbs_ex_create_rwq_ind_table", "ib_uverbs_ex_create_rwq_ind_table_resp"},
	"IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL": {"ib_uverbs_ex_destroy_rwq_ind_table", ""},
	"RDMA_USER_CM_CMD_BIND_IP":                 {"rdma_ucm_bind_ip", ""},
	"RDMA_USER_CM_CMD_QUERY_ROUTE":             {"rdma_ucm_query", "rdma_ucm_query_route_resp"},
	"RDMA_USER_CM_CMD_QUERY":                   {"rdma_ucm_query", "rdma_ucm_query_addr_resp"},
	"RDMA_USER_CM_CMD_INIT_QP_ATTR":            {"rdma_ucm_init_qp_attr", "ib_uverbs_qp_attr"},
	"RDMA_USER_CM_CMD_GET_EVENT":               {"rdma_ucm_get_event", "rdma_ucm_event_resp"},
	"RDMA_USER_CM_CMD_LEAVE_MCAST":             {"rdma_ucm_destroy_id", "rdma_ucm_destroy_id_resp"},
	"RDMA_USER_CM_CMD_JOIN_IP_MCAST":           {"rdma_ucm_join_ip_mcast", "rdma_ucm_create_id_resp"},
	"RDMA_USER_CM_CMD_JOIN_MCAST":              {"rdma_ucm_join_mcast", "rdma_ucm_create_id_resp"},
	"RDMA_USER_CM_CMD_MIGRATE_ID":              {"rdma_ucm_migrate_id", "rdma_ucm_migrate_resp"},
}

// structsOf returns the structs of a command's request and response by its name. The last is "" if it
// has no response.
func structsOf(command string) (in, out string) {
	if s, ok := commandStructs[command]; ok {
		return s[0], s[1]
	}
	name := strings.ToLower(command)
	for _, p := range [][2]string{
		{"ib_user_verbs_ex_cmd_", "ib_uverbs_ex_"}, {"ib_user_verbs_cmd_", "ib_uverbs_"}, {"rdma_user_cm_cmd_", "rdma_ucm_"},
	} {
		if rest, ok := strings.CutPrefix(name, p[0]); ok {
			name = p[1] + rest
			break
		}
	}
	if abi().structs[name] == nil {
		return "", ""
	}
	if abi().structs[name+"_resp"] != nil {
		out = name + "_resp"
	}
	return name, out
}

// specification is the parsed form of spec.
type specification struct {
	objects map[uint16][]string // enums of methods by object
	methods map[string][]string // enums of attributes by method
	attrs   map[string]string
	outputs map[string]bool
	drivers map[driverCommand][2]string
}

type driverCommand struct {
	driver  uint32
	command string
}

var specified = sync.OnceValue(func() *specification {
	s := &specification{map[uint16][]string{}, map[string][]string{}, map[string]string{}, map[string]bool{}, map[driverCommand][2]string{}}
	for line := range strings.Lines(spec) {
		w := strings.Fields(line)
		if len(w) < 2 {
			continue
		}
		switch w[0] {
		case "object":
			id := uint16(abi().values[w[1]])
			s.objects[id] = append(s.objects[id], w[2])
		case "method":
			s.methods[w[1]] = append(s.methods[w[1]], w[2])
		case "attr":
			s.attrs[w[1]] = w[2]
		case "output":
			s.outputs[w[1]] = true
		case "driver":
			s.drivers[driverCommand{uint32(abi().values[w[1]]), w[2]}] = [2]string{strings.Trim(w[3], "-"), strings.Trim(w[4], "-")}
		}
	}
	return s
})
