package pyverbs

import (
	"os"
	"slices"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestEFA runs rdma-core's tests of EFA on the modelled card of test/efa. A newer version has more of them.
func TestEFA(t *testing.T) {
	testenv.Boot(t, "GOVERBS_EFA", "efa/model")
	srd := []string{
		"full_rq_bad_flow", "full_sq_bad_flow", "post_receive_qp_state_bad_flow", "post_send_qp_state_bad_flow", "qp_ex_srd_old_send", "qp_ex_srd_old_send_imm",
		"qp_ex_srd_send", "qp_ex_srd_send_imm", "qp_ex_srd_zero_size", "rq_with_larger_sgl_bad_flow",
	}
	names := []string{
		"efadv.EfaAHTest.test_efadv_query_ah", "efadv.EfaCqTest.test_dv_cq_ex_with_sgid",
		"efadv.EfaQPTest.test_efadv_create_driver_qp", "efadv.EfaQueryDeviceTest.test_efadv_query",
	}
	if !testenv.CardIs("no-read") { // the second one asks for any operations, READ among them
		srd, names = append(srd, "qp_ex_srd_rdma_read"), append(names, "efadv.EfaQPExTest.test_efadv_create_qp_ex")
	}
	if os.Getenv("GOVERBS_EFA_NEWEST") == "1" {
		srd = append(srd, "qp_ex_srd_rdma_write", "qp_ex_srd_rdma_write_with_imm", "qp_ex_srd_rdma_unsolicited_write_with_imm")
		names = append(names, "efa_srd.CqEventsSRDTestCase.test_cq_events_srd", "efadv.EfaMRTest.test_efadv_query_mr")
	}
	for _, name := range srd {
		names = append(names, "efa_srd.QPSRDTestCase.test_"+name)
	}
	for i := range names {
		names[i] = "test_" + names[i]
	}
	slices.Sort(names)
	run(t, "efa_0", 0, []string{"test_efa_srd.py", "test_efadv.py"}, names)
}
