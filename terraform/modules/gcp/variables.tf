variable "project" {
  type        = string
  description = "Id of the project."

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "project must be the id of a project, such as my-project-123456."
  }
}

variable "region" {
  type        = string
  description = "Region of everything; the control plane is in three of its zones."
}

variable "zones" {
  type        = list(string)
  description = "Zones of the machines, in the region; not every zone has every GPU."

  validation {
    condition     = length(var.zones) > 0 && length(var.zones) == length(distinct(var.zones))
    error_message = "zones must be at least one zone, each of them once."
  }

  validation {
    condition     = alltrue([for each in var.zones : startswith(each, "${var.region}-")])
    error_message = "Each of zones must be in the region, such as europe-west4-a."
  }
}

variable "name" {
  type        = string
  description = "Name of the cluster and prefix of every other name."
  default     = "chairlift"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,18}[a-z0-9]$", var.name))
    error_message = "name must be 3 to 20 small letters, digits and hyphens, and begin with a letter."
  }
}

variable "release_channel" {
  type        = string
  description = "Pace of GKE's own upgrades: RAPID, REGULAR, STABLE or EXTENDED."
  default     = "REGULAR"

  validation {
    condition     = contains(["RAPID", "REGULAR", "STABLE", "EXTENDED"], var.release_channel)
    error_message = "release_channel must be RAPID, REGULAR, STABLE or EXTENDED."
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

variable "cidr" {
  type        = string
  description = "Addresses of the network, a /16: half of it for pods, a /20 each for nodes and services."
  default     = "10.40.0.0/16"

  validation {
    condition     = can(cidrhost(var.cidr, 0)) && endswith(var.cidr, "/16")
    error_message = "cidr must be an IPv4 /16, such as 10.40.0.0/16."
  }
}

variable "control_plane_cidr" {
  type        = string
  description = "Addresses of the control plane, a /28 outside the network."
  default     = "10.41.0.0/28"

  validation {
    condition     = can(cidrhost(var.control_plane_cidr, 0)) && endswith(var.control_plane_cidr, "/28")
    error_message = "control_plane_cidr must be an IPv4 /28, such as 10.41.0.0/28."
  }
}

variable "flow_logs" {
  type        = bool
  description = "Log the network's flows."
  default     = true
}

variable "system_pool" {
  type = object({
    machine_type = optional(string, "e2-standard-8")
    min          = optional(number, 2)
    max          = optional(number, 4)
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
    machine_type = string
    gpu_type     = string
    gpu_count    = number
    spot         = optional(bool, false)
    min          = optional(number, 0)
    max          = number
    disk_gib     = optional(number, 200)
    zones        = optional(list(string))
  }))
  description = "Machines of the workers by name of their pool, such as g2-standard-8 with one nvidia-l4; `zones` where not all of the cluster's have the GPU."

  validation {
    condition     = alltrue([for pool in var.gpu_pools : pool.min >= 0 && pool.max >= max(pool.min, 1)])
    error_message = "Each of gpu_pools wants 0 <= min <= max, and max at least 1."
  }

  validation {
    condition     = !contains(keys(var.gpu_pools), "system") && alltrue([for name in keys(var.gpu_pools) : can(regex("^[a-z][a-z0-9-]{0,19}$", name))])
    error_message = "Names of gpu_pools must be up to 20 small letters, digits and hyphens; \"system\" is taken."
  }

  validation {
    condition     = alltrue([for pool in var.gpu_pools : contains([1, 2, 4, 8, 16], pool.gpu_count) && pool.disk_gib >= 100])
    error_message = "Each of gpu_pools wants 1, 2, 4, 8 or 16 GPUs, and 100 GiB of disk at least."
  }
}

variable "image_repository" {
  type        = object({ location = string, name = string })
  description = "Repository in Artifact Registry that nodes may pull images from; null for none."
  default     = null
}

variable "namespace" {
  type        = string
  description = "Namespace of the service, whose service account may read the weights."
  default     = "chairlift"
}

variable "service_account" {
  type        = string
  description = "Service account of the service in that namespace."
  default     = "chairlift"
}

variable "domain" {
  type = object({
    name         = string
    zone         = string
    client_cidrs = set(string)
    router_tls   = optional(bool, false)
  })
  description = "Name of the service in a zone of Cloud DNS, and who may reach it (443 HTTPS, 9443 gRPC): load balancer, certificate and record. `router_tls`: the routers speak TLS as well, as in overlays/production. Null for none of it."
  default     = null

  validation {
    condition = var.domain == null ? true : (
      can(regex("^[a-z0-9-]+(\\.[a-z0-9-]+)+$", var.domain.name)) && length(var.domain.client_cidrs) > 0 &&
      length(var.domain.client_cidrs) <= 10 && alltrue([for each in var.domain.client_cidrs : can(cidrhost(each, 0))])
    )
    error_message = "domain wants a full name, such as llm.example.org, and 1 to 10 ranges of IPv4 addresses in client_cidrs."
  }
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
  type = object({
    billing_account = string
    monthly         = number
    currency        = optional(string, "USD")
    emails          = list(string)
  })
  description = "What the project may cost in a month, in whole units of the billing account's currency, and who is told at 80% of it, or when 100% are foreseen."

  validation {
    condition     = var.budget.monthly >= 1 && floor(var.budget.monthly) == var.budget.monthly
    error_message = "budget.monthly must be a whole number, 1 or more."
  }

  validation {
    condition     = length(var.budget.emails) > 0 && length(var.budget.emails) <= 5 && alltrue([for each in var.budget.emails : strcontains(each, "@")])
    error_message = "budget.emails must be 1 to 5 addresses."
  }
}

variable "deletion_protection" {
  type        = bool
  description = "Refuse to delete the cluster and a bucket that holds weights."
  default     = true
}

variable "labels" {
  type        = map(string)
  description = "Labels of everything that takes some, besides service = name."
  default     = {}
}
