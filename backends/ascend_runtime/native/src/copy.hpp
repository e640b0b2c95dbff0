// Moving a plan between addresses of this process: host, device, both ways.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "acl.hpp"
#include "device.hpp"
#include "plan.hpp"
#include "unsettled.hpp"
#include "window.hpp"

namespace cachecore::ascend {

enum class CopyCause { none, deadline, source_fault, destination_fault, native };

struct CopyReport {
    CopyCause cause = CopyCause::none;
    std::string function;  // what failed
    int code = 0;          // its code: of the runtime, or an errno of a system call
    std::string detail;    // text of aclGetRecentErrMsg
    Knowledge known;
    bool host_only = false;        // ordinary memory on both sides of every pair: nothing was done, the core does it
    std::string restore_function;  // the thread's own state could not be put back, which changes nothing of the above
    int restore_code = 0;
    std::shared_ptr<Unsettled> unsettled;  // not null: something may still run
};

// Blocking. Throws AclFailure where the thread could not be prepared: nothing was moved then.
CopyReport copy_plan(const std::shared_ptr<Device> &device, const Plan &plan, double deadline,
                     const std::vector<acl::Event> &events, const CopyLimits &limits);

}  // namespace cachecore::ascend
