variable "name" {
  type        = string
  description = "Name of the cluster and prefix of every other name."
  default     = "chairlift"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,24}[a-z0-9]$", var.name))
    error_message = "name must be 3 to 26 small letters, digits and hyphens, and begin with a letter."
  }
}

variable "kubernetes_version" {
  type        = string
  description = "Minor version of Kubernetes; go up one at a time."
  default     = "1.35"

  validation {
    condition     = can(regex("^1\\.[0-9]{2}$", var.kubernetes_version))
    error_message = "kubernetes_version must be a minor version, such as 1.35."
  }
}

variable "api_cidrs" {
  type        = list(string)
  description = "Who may reach the Kubernetes API from outside the network, as addresses; empty for nobody, and then Terraform has to run inside."
  default     = []

  validation {
    condition     = alltrue([for each in var.api_cidrs : can(cidrhost(each, 0)) && !endswith(each, "/0")])
    error_message = "api_cidrs must be ranges of IPv4 addresses, such as 203.0.113.7/32, and not the whole world."
  }
}

variable "admin_arns" {
  type        = set(string)
  description = "IAM roles or users that administer the cluster, besides the one that makes it."
  default     = []
}

variable "cidr" {
  type        = string
  description = "Addresses of the network, a /16."
  default     = "10.40.0.0/16"
}

variable "zones" {
  type        = number
  description = "Availability zones to spread over, 2 to 6."
  default     = 2
}

variable "nat_per_zone" {
  type        = bool
  description = "A NAT gateway in each zone, so that one zone's loss leaves the others their way out; else one for all."
  default     = false
}

variable "flow_log_days" {
  type        = number
  description = "Days that the network's flow log is kept; 0 for none."
  default     = 30
}

variable "log_days" {
  type        = number
  description = "Days that the logs of the Kubernetes API are kept."
  default     = 365

  validation {
    condition     = contains([30, 60, 90, 120, 150, 180, 365, 400, 545, 731], var.log_days)
    error_message = "log_days must be a retention that CloudWatch knows: 30, 60, 90, 120, 150, 180, 365, 400, 545 or 731."
  }
}

variable "system_pool" {
  type = object({
    instance_types = optional(list(string), ["m7i.2xlarge"])
    min            = optional(number, 2)
    max            = optional(number, 4)
  })
  description = "Machines without GPUs, always on demand: Ray's head, the routers, the operators."
  default     = {}

  validation {
    condition     = var.system_pool.min >= 1 && var.system_pool.max >= var.system_pool.min
    error_message = "system_pool wants 1 <= min <= max."
  }
}

variable "gpu_pools" {
  type = map(object({
    instance_types = list(string)
    spot           = optional(bool, false)
    min            = optional(number, 0)
    max            = number
    disk_gib       = optional(number, 200)
    efa_interfaces = optional(number, 0)
  }))
  description = "Machines of the workers by name of their pool. `efa_interfaces`: cards for EFA, as many as the type of instance has (p4d 4, p5 32), 0 for none; such a pool stays in the first zone."

  validation {
    condition     = alltrue([for pool in var.gpu_pools : pool.min >= 0 && pool.max >= max(pool.min, 1)])
    error_message = "Each of gpu_pools wants 0 <= min <= max, and max at least 1."
  }

  validation {
    condition     = !contains(keys(var.gpu_pools), "system") && alltrue([for name in keys(var.gpu_pools) : can(regex("^[a-z][a-z0-9-]{0,19}$", name))])
    error_message = "Names of gpu_pools must be up to 20 small letters, digits and hyphens; \"system\" is taken."
  }

  validation {
    condition     = alltrue([for pool in var.gpu_pools : length(pool.instance_types) > 0 && pool.disk_gib >= 100])
    error_message = "Each of gpu_pools wants a type of instance, and 100 GiB of disk at least."
  }

  validation {
    condition     = alltrue([for pool in var.gpu_pools : pool.efa_interfaces >= 0 && pool.efa_interfaces <= 32])
    error_message = "efa_interfaces must be 0 to 32."
  }
}

variable "domain" {
  type = object({
    name         = string
    zone_id      = string
    client_cidrs = set(string)
    internal     = optional(bool, false)
    router_tls   = optional(bool, false)
  })
  description = "Name of the service in a Route 53 zone, and who may reach it (443 HTTPS, 9443 gRPC): load balancer, certificate and record. `router_tls`: the routers speak TLS as well, as in overlays/production. Null for none of it."
  default     = null
}

variable "node_ports" {
  type        = object({ http = number, grpc = number })
  description = "Ports of the nodes that lead to the routers."
  default     = { http = 30800, grpc = 30900 }

  validation {
    condition     = alltrue([for port in values(var.node_ports) : port >= 30000 && port <= 32767])
    error_message = "node_ports must be within 30000 to 32767, which Kubernetes keeps for them."
  }
}

variable "budget" {
  type        = object({ monthly_usd = number, emails = list(string) })
  description = "What the account may cost in a month, and who is told at 80% of it, or when 100% are foreseen."
}

variable "deletion_protection" {
  type        = bool
  description = "Refuse to delete the cluster, its load balancer and a bucket that holds weights."
  default     = true
}

variable "tags" {
  type        = map(string)
  description = "Tags of everything that takes some, besides Service = name."
  default     = {}
}
