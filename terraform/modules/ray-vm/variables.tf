variable "name" {
  type        = string
  description = "Prefix of every name."
  default     = "chairlift"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,24}[a-z0-9]$", var.name))
    error_message = "name must be 3 to 26 small letters, digits and hyphens, and begin with a letter."
  }
}

variable "package" {
  type        = string
  description = "What pip installs: a requirement such as `chairlift[serve]==0.1.0`, or the key of a wheel in the weights bucket, such as `chairlift-0.1.0-py3-none-any.whl[gpu]`."

  validation {
    condition     = can(regex("^[A-Za-z0-9/._=+-]+(\\[[a-z,]+\\])?[A-Za-z0-9._=]*$", var.package))
    error_message = "package must be a requirement or a key without spaces or quotes."
  }
}

variable "constraints" {
  type        = string
  description = "Versions of all packages: what constraints.txt at the repository's root holds."
}

variable "ray_version" {
  type        = string
  description = "Version of Ray, the one that constraints.txt has."
  default     = "2.60.0"

  validation {
    condition     = can(regex("^[0-9]+\\.[0-9]+\\.[0-9]+$", var.ray_version))
    error_message = "ray_version must be a version, such as 2.60.0."
  }
}

variable "model" {
  type        = string
  description = "Key of a GGUF file, or prefix of a folder, in the weights bucket; null for the embedded model."
  default     = null

  validation {
    condition     = var.model == null ? true : can(regex("^[A-Za-z0-9][A-Za-z0-9._/-]*[A-Za-z0-9]$", var.model))
    error_message = "model must be a key in the bucket, such as models/my-llama."
  }
}

variable "settings" {
  type        = any
  description = "Sections of Chairlift's configuration, as `chairlift serve --config` takes them; they go over what follows from the other variables."
  default     = {}
}

variable "head_instance_type" {
  type        = string
  description = "Type of the head's machine, which runs Ray's own services and no model."
  default     = "m7i.large"
}

variable "workers" {
  type = object({
    instance_types = list(string)
    count          = optional(number, 1)
    gpus           = optional(number, 0)
    spot           = optional(bool, false)
    disk_gib       = optional(number, 200)
  })
  description = "Machines that serve, each with a router and a replica for each of its `gpus` (one replica without any). `spot`: any of the types, as they are to be had."

  validation {
    condition     = length(var.workers.instance_types) > 0 && var.workers.count >= 1 && var.workers.count <= 64
    error_message = "workers wants a type of instance and a count of 1 to 64."
  }

  validation {
    condition     = var.workers.gpus >= 0 && var.workers.gpus <= 16 && var.workers.disk_gib >= 50
    error_message = "workers wants 0 to 16 gpus and 50 GiB of disk at least."
  }
}

variable "cidr" {
  type        = string
  description = "Addresses of the network, a /16."
  default     = "10.40.0.0/16"
}

variable "flow_log_days" {
  type        = number
  description = "Days that the network's flow log is kept; 0 for none."
  default     = 30
}

variable "domain" {
  type = object({
    name         = string
    zone_id      = string
    client_cidrs = set(string)
    internal     = optional(bool, false)
  })
  description = "Name of the service in a Route 53 zone, and who may reach it (443 HTTPS, 9443 gRPC): load balancer, certificate and record. Null for none of it."
  default     = null
}

variable "budget" {
  type        = object({ monthly_usd = number, emails = list(string) })
  description = "What the account may cost in a month, and who is told at 80% of it, or when 100% are foreseen."
}

variable "deletion_protection" {
  type        = bool
  description = "Refuse to delete the load balancer and a bucket that holds weights."
  default     = true
}

variable "tags" {
  type        = map(string)
  description = "Tags of everything that takes some, besides Service = name."
  default     = {}
}
